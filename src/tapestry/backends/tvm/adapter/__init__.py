"""The only place that imports TVM, whose Python API is untyped and renamed between minor releases."""
