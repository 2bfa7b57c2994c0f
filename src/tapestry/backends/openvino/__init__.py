"""OpenVINO as a backend: `backend` compiles, `load` runs and needs no torch."""
