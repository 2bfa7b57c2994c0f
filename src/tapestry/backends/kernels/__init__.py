"""Hand-written kernels, which win over the compiler where their pattern matches. docs/backends.md shows how."""
