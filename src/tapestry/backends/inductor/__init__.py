"""TorchInductor as a backend: `backend` compiles, `load` freezes and runs."""
