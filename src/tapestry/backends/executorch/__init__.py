"""ExecuTorch (XNNPACK) as a backend: `backend` compiles, `load` runs."""
