"""Matrix products, softmax, norms and attention: kernels for several kinds of devices, written once, in WGSL."""
