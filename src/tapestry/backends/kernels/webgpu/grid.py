"""What the WGSL kernels share: grids within the limits, and special values that WGSL has no literals for.

Not here: any operator.
"""

from __future__ import annotations

from math import ceil

#: Workgroups along one dimension that every adapter takes.
MOST_GROUPS = 65_535
#: Invocations in a workgroup of kernels that need no more; every adapter takes 256.
GROUP = 64

#: A literal of such a value is an error of the shader; its bits in a variable are not. The tests look at bits because
#: an implementation may assume that there are no such values.
SPECIAL = """
var<private> inf_bits : u32 = 0x7f800000u;
var<private> nan_bits : u32 = 0x7fc00000u;
fn infinity() -> f32 { return bitcast<f32>(inf_bits); }
fn not_a_number() -> f32 { return bitcast<f32>(nan_bits); }
fn is_nan(x : f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_finite(x : f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
fn with_sign(x : f32, sign : f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
"""

#: Parameters of an entry point, and its place in a grid that was split over y.
ENTRY = "@builtin(workgroup_id) group : vec3u, @builtin(num_workgroups) groups : vec3u, \
@builtin(local_invocation_index) lane : u32"
PLACE = "group.y * groups.x + group.x"


def groups_for(count: int) -> tuple[int, int]:
    """A grid of at least ``count`` workgroups, along x and y; the kernel leaves those beyond it."""
    layers = max(1, ceil(count / MOST_GROUPS))
    return ceil(count / layers), layers
