"""Kernels for WebGPU that ship with Tapestry: what the compiler lacks or gets wrong there (docs/backends-tvm.md)."""
