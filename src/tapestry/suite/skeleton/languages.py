"""How an unfinished kernel looks in each kernel language: types, bindings, a body that compiles and computes nothing.

Not here: the Python around it (text).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Invocations of a workgroup.
GROUP = 64

#: How a device stores each dtype, as the elements of a buffer. Half-precision floats are bits for OpenCL, where not
#: every device computes with them; WGSL has words only.
_OPENCL = {
    "float32": "float", "float64": "double", "float16": "ushort", "bfloat16": "ushort", "int64": "long",
    "int32": "int", "int16": "short", "int8": "char", "uint8": "uchar", "bool": "uchar",
}  # fmt: skip
_WGSL = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), "f32"),
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8", "bool"), "i32"),
}


@dataclass(frozen=True)
class Language:
    """``types``: dtype → the type of a buffer's elements. ``source`` is given the kernel's name, its inputs and its
    results as pairs of a binding and a type, and gives the text. ``groups`` is the expression for the grid of ``count``
    invocations, ``needs`` what it imports.
    """

    name: str
    types: Mapping[str, str]
    source: Callable[[str, Sequence[tuple[str, str]], Sequence[tuple[str, str]]], list[str]]
    groups: str
    needs: str


def _opencl(entry: str, inputs: Sequence[tuple[str, str]], results: Sequence[tuple[str, str]]) -> list[str]:
    parameters = [f"__global const {kind}* {name}_" for name, kind in inputs]
    parameters += [f"__global {kind}* {name}_" for name, kind in results]
    lines = [f"__kernel void {entry}("]
    lines += [
        f"    {parameter}{',' if place < len(parameters) - 1 else ''}" for place, parameter in enumerate(parameters)
    ]
    lines += [") {", "    size_t i = get_global_id(0);"]
    for (name, _), count in zip(results, counts(len(results)), strict=True):
        lines.append(f"    if (i < {count}) {name}_[i] = 0;  // to do: element i of {name}, in row-major order")
    return [*lines, "}"]


def _wgsl(entry: str, inputs: Sequence[tuple[str, str]], results: Sequence[tuple[str, str]]) -> list[str]:
    access = [*((name, kind, "read") for name, kind in inputs), *((name, kind, "read_write") for name, kind in results)]
    lines = [
        f"@group(0) @binding({place}) var<storage, {how}> {name}_ : array<{kind}>;"
        for place, (name, kind, how) in enumerate(access)
    ]
    lines += [
        "",
        f"@compute @workgroup_size({GROUP})",
        f"fn {entry}(@builtin(workgroup_id) group : vec3u, @builtin(num_workgroups) groups : vec3u,",
        "        @builtin(local_invocation_index) lane : u32) {",
        f"  let i = (group.y * groups.x + group.x) * {GROUP}u + lane;",
    ]
    for (name, kind), count in zip(results, counts(len(results)), strict=True):
        todo = f"// to do: element i of {name}, in row-major order"
        lines.append(f"  if (i < {count}) {{ {name}_[i] = {kind}(0); }}  {todo}")
    return [*lines, "}"]


def counts(results: int) -> tuple[str, ...]:
    """The names of the constants that hold the elements of each result."""
    return ("COUNT",) if results == 1 else tuple(f"COUNT{place}" for place in range(results))


LANGUAGES = {
    "opencl": Language("OpenCL C", _OPENCL, _opencl, f"(max(1, ceil(count / {GROUP})),)", ""),
    "webgpu": Language(
        "WGSL", _WGSL, _wgsl, f"groups_for(ceil(count / {GROUP}))",
        "from tapestry.backends.kernels.webgpu.grid import groups_for",
    ),
}  # fmt: skip
