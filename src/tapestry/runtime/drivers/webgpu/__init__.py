"""The WebGPU driver: native adapters (Vulkan, Metal, Direct3D 12) through wgpu-py. WGSL sources only."""
