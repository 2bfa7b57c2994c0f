"""What an adapter does wrong without a word, found out by a small kernel before anything depends on it.

Mesa's llvmpipe (also as the Vulkan driver lavapipe) leaves every loop once an invocation has gone round 65,535 times
in all of a kernel's loops together; results are then silently wrong. Not here: what the adapter says about itself.
"""

from __future__ import annotations

import struct
from typing import Any

#: Rounds that the kernel is to make. An adapter that makes them all is taken to have no limit.
ROUNDS = 1 << 17

_SOURCE = f"""
@group(0) @binding(0) var<storage, read_write> count : array<u32>;
@compute @workgroup_size(1)
fn rounds() {{
  var made = 0u;
  for (var i = 0u; i < {ROUNDS}u; i++) {{ made += 1u + (count[1] & i); }}
  count[0] = made;
}}
"""


def loop_limit(wgpu: Any, device: Any) -> int:
    """Loop iterations that an invocation may make in one kernel, or 0 for no limit met."""
    usage = wgpu.BufferUsage
    buffer = device.create_buffer_with_data(data=bytes(16), usage=int(usage.STORAGE | usage.COPY_SRC))
    shader = device.create_shader_module(code=_SOURCE)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": shader, "entry_point": "rounds"})
    group = device.create_bind_group(
        layout=pipeline.get_bind_group_layout(0), entries=[{"binding": 0, "resource": {"buffer": buffer}}]
    )
    encoder = device.create_command_encoder()
    encoding = encoder.begin_compute_pass()
    encoding.set_pipeline(pipeline)
    encoding.set_bind_group(0, group)
    encoding.dispatch_workgroups(1)
    encoding.end()
    device.queue.submit([encoder.finish()])
    (made,) = struct.unpack("<I", bytes(device.queue.read_buffer(buffer, 0, 4)))
    buffer.destroy()
    return 0 if made >= ROUNDS else int(made)
