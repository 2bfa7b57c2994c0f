"""Small programs that show the most a device can do: copies of a large buffer, chains of fused multiply-adds.

Several widths and ways of writing each, since compilers and processors differ in which they like; the fastest counts.
Not here: keeping what was measured (roofs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import torch

from tapestry.backends.eager import Eager
from tapestry.errors import DeviceLostError, TapestryError, UnsupportedError
from tapestry.profiling.timing import time_commands
from tapestry.program.graph import Call as GraphCall
from tapestry.program.graph import Graph, GraphInput, Ref, TensorSpec
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, Device, DeviceInfo, Launch, Loaded
from tapestry.runtime.module import Artifact, KernelDecl, KernelModule

#: Bytes of the buffer that is copied: more than caches hold, and no more than a small device can spare.
_COPY_BYTES = 128 << 20
#: Share of a device's memory that one of the two buffers may take.
_MEMORY_SHARE = 16
#: What the source of a copy is filled with first, in bytes: memory that nothing wrote may not be there yet.
_SEED_BYTES = 1 << 20
#: What one layer of a copying kernel's grid copies: 16,384 groups of 64 vectors of four floats.
_STEP_BYTES = 16 << 20

_GROUP = 64
#: Chains of an invocation, links of each in a round, and rounds: enough to hide a multiply-add's latency.
CHAINS, LINKS, ROUNDS = 12, 2, 256
#: Workgroups that a chain begins with, and how many at most; it grows until a run lasts so many seconds.
_GROUPS, _MOST_GROUPS, _LONG = 64, 16_384, 5e-3
#: Seconds that each benchmark takes, about.
_BUDGET = 0.4
#: Rows and columns of the product on devices that run artifacts.
_PRODUCT = 1024


@dataclass(frozen=True)
class Rate:
    """What a benchmark reached, per second, and which one it was."""

    per_second: float
    name: str


def copy_bytes(info: DeviceInfo) -> int:
    """The size of the copied buffer on this device, in bytes: whole MiB, from 16 on in steps of 16."""
    limits = [
        _COPY_BYTES,
        *(limit for limit in (info.limits.max_buffer_bytes, info.limits.max_binding_bytes) if limit),
        *([info.limits.memory_bytes // _MEMORY_SHARE] if info.limits.memory_bytes else []),
    ]
    step = _STEP_BYTES if min(limits) >= _STEP_BYTES else _SEED_BYTES
    return max(_SEED_BYTES, min(limits) // step * step)


def copy_rates(device: Device) -> Iterator[Callable[[], Rate]]:
    """Ways to copy; each reads and writes every byte once. Raises UnsupportedError for a kind without benchmarks."""
    nbytes = copy_bytes(device.info)
    yield lambda: _copied(device, nbytes, None)
    for kernel in kernels(device.info, "copy"):
        yield lambda kernel=kernel: _copied(device, nbytes, (kernel.name, kernel.module))
    if device.info.kind in Eager.device_kinds:
        yield lambda: _copied(device, nbytes, ("PyTorch's copy", view_of(nbytes // 4, device.info)))


def arithmetic_rates(device: Device) -> Iterator[Callable[[], Rate]]:
    """Ways to compute in float32. Raises UnsupportedError for a kind without benchmarks."""
    for kernel in kernels(device.info, "chain"):
        yield lambda kernel=kernel: _chained(device, kernel)
    if device.info.kind in Eager.device_kinds:
        yield lambda: _multiplied(device)


def check_measurable(info: DeviceInfo) -> None:
    """UnsupportedError where there are no benchmarks for this kind of device."""
    if info.kind not in {"opencl", "webgpu", *Eager.device_kinds}:
        raise UnsupportedError(f"{info.name}: no roof benchmark for devices of kind {info.kind!r}")


def texts() -> list[str]:
    """What a kept measurement depends on: the templates of all kernels, and the PyTorch that a host runs."""
    return [_OPENCL_CHAIN, _OPENCL_COPY, _WGSL_CHAIN, _WGSL_COPY, str(torch.__version__)]


def fastest(ways: Iterator[Callable[[], Rate]], device: Device) -> Rate:
    """The fastest way. Raises the last way's error where none runs."""
    best: Rate | None = None
    problem: TapestryError | None = None
    for way in ways:
        try:
            found = way()
        except TapestryError as error:
            problem = error
            if isinstance(error, DeviceLostError):
                device.restart()
            continue
        if best is None or found.per_second > best.per_second:
            best = found
    if best is None:
        raise problem or UnsupportedError(f"{device.info.name}: no roof benchmark for kind {device.info.kind!r}")
    return best


# -- running them


@contextmanager
def _memory(device: Device, *sizes: int) -> Generator[list[Buffer]]:
    generation = device.generation
    buffers: list[Buffer] = []
    try:
        for nbytes in sizes:
            buffers.append(device.alloc(nbytes))
        yield buffers
    finally:
        if device.generation == generation:
            for buffer in buffers:
                device.free(buffer)


@contextmanager
def _loaded(device: Device, module: KernelModule | Artifact) -> Generator[Loaded]:
    generation, loaded = device.generation, device.load(module)
    try:
        yield loaded
    finally:
        if device.generation == generation:
            device.unload(loaded)


def _copied(device: Device, nbytes: int, by: tuple[str, KernelModule | Artifact] | None) -> Rate:
    with _memory(device, nbytes, nbytes) as (source, target):
        fill(device, source, target)
        if by is None:
            commands: list[Command] = [CopyBuffer(source, target, nbytes)]
            return Rate(2 * nbytes / time_commands(device, commands, _BUDGET).low, "the driver's copy of a buffer")
        name, module = by
        with _loaded(device, module) as loaded:
            if isinstance(module, Artifact):
                commands = [Call(loaded, (source,), (target,))]
            else:
                groups = nbytes // 16 // _GROUP
                layers = -(-nbytes // _STEP_BYTES)
                grid = (groups // layers, layers, 1)
                commands = [Launch(loaded, "copy", (source, target), grid, (_GROUP, 1, 1))]
            return Rate(2 * nbytes / time_commands(device, commands, _BUDGET).low, name)


def fill(device: Device, source: Buffer, target: Buffer) -> None:
    """Write all of two buffers of one size in whole MiB, mostly by copies there: a network may lie between."""
    device.write(source, bytes(range(256)) * (_SEED_BYTES // 256))
    done, commands = _SEED_BYTES, list[Command]()
    while True:
        commands.append(CopyBuffer(source, target, done))
        more = min(done, source.nbytes - done)
        if not more:
            break
        commands.append(CopyBuffer(target, source, more, target_offset=done))
        done += more
    device.submit(commands)
    device.sync()


def _chained(device: Device, kernel: Kernel) -> Rate:
    per_group = 2 * _GROUP * CHAINS * LINKS * ROUNDS * kernel.width
    with _loaded(device, kernel.module) as loaded, _memory(device, 256, 4 * _GROUP * _MOST_GROUPS) as (given, made):
        # x → x · 0.99 + 0.01 stays between 0 and 1, wherever it begins.
        values = [0.99, 0.01, *(place / 64 for place in range(62))]
        device.write(given, torch.tensor(values, dtype=torch.float32).numpy().tobytes())
        groups = _GROUPS
        while True:
            launch = Launch(loaded, "chain", (given, made), (groups, 1, 1), (_GROUP, 1, 1))
            seconds = device.time([launch], 1)[0]
            if seconds >= _LONG or groups >= _MOST_GROUPS:
                break
            groups *= 4
        return Rate(per_group * groups / time_commands(device, [launch], _BUDGET).low, f"multiply-adds, {kernel.name}")


def _multiplied(device: Device) -> Rate:
    n = _PRODUCT
    module = _product(n, device.info)
    with _loaded(device, module) as loaded, _memory(device, *[4 * n * n] * 3) as (left, right, made):
        data = torch.linspace(0, 1, n * n).numpy().tobytes()
        device.write(left, data)
        device.write(right, data)
        seconds = time_commands(device, [Call(loaded, (left, right), (made,))], _BUDGET).low
        return Rate(2 * n**3 / seconds, f"PyTorch's product of {n} by {n} matrices")


# -- what they run


@dataclass(frozen=True)
class Kernel:
    """A hand-written benchmark; ``width`` is how many floats a link of its chains computes."""

    name: str
    module: KernelModule
    width: int


def kernels(info: DeviceInfo, entry: str) -> Iterator[Kernel]:
    """The hand-written kernels called ``copy`` or ``chain`` for this kind of device; none where it runs artifacts."""
    decls = (KernelDecl(entry, "rw"),)
    if info.kind == "opencl" and entry == "copy":
        yield Kernel("a copying kernel", KernelModule("opencl", _OPENCL_COPY, decls), 4)
    elif info.kind == "opencl":
        # PoCL calls a function for each mad, and fuses a product and a sum, which OpenCL allows unless told not to.
        for width, (link, how) in product((1, 4, 8), (("c * a + b", _SUM), ("mad(c, a, b)", "mad"))):
            yield Kernel(f"{_named(width)}, {how}", KernelModule("opencl", _opencl_chain(width, link), decls), width)
    elif info.kind == "webgpu" and entry == "copy":
        yield Kernel("a copying kernel", KernelModule("wgsl", _WGSL_COPY, decls), 4)
    elif info.kind == "webgpu":
        for width, (link, how) in product((1, 4), (("c * a + b", _SUM), ("fma(c, a, b)", "fma"))):
            yield Kernel(f"{_named(width)}, {how}", KernelModule("wgsl", _wgsl_chain(width, link), decls), width)


_SUM = "a product and a sum"


def _named(width: int) -> str:
    return "scalar" if width == 1 else f"{width} wide"


_OPENCL_COPY = """
__kernel void copy(__global const float4* source, __global float4* target) {
    size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
    target[i] = source[i];
}
"""

# The lanes of a vector differ, or a compiler would compute one of them; a and b come from memory for the same reason.
_OPENCL_CHAIN = """
__kernel void chain(__global const float* x, __global float* out) {
    const TYPE a = (TYPE)(x[0]), b = (TYPE)(x[1]);
    const TYPE first = LOAD + (TYPE)((float)(get_global_id(0) & 63) * 0x1p-8f);
    BEGIN
    for (int r = 0; r < ROUNDS; ++r) { STEP }
    TYPE all = SUM;
    out[get_global_id(0)] = TOTAL;
}
"""

_WGSL_COPY = """
@group(0) @binding(0) var<storage, read> source : array<vec4f>;
@group(0) @binding(1) var<storage, read_write> result : array<vec4f>;
@compute @workgroup_size(64)
fn copy(@builtin(global_invocation_id) id : vec3u, @builtin(num_workgroups) groups : vec3u) {
  let i = id.y * groups.x * 64u + id.x;
  result[i] = source[i];
}
"""

_WGSL_CHAIN = """
@group(0) @binding(0) var<storage, read> x : array<f32>;
@group(0) @binding(1) var<storage, read_write> result : array<f32>;
@compute @workgroup_size(64)
fn chain(@builtin(global_invocation_id) id : vec3u) {
  let a = TYPE(x[0]);
  let b = TYPE(x[1]);
  let first = LOAD + TYPE(f32(id.x & 63u) * 0.00390625);
  BEGIN
  for (var r = 0u; r < ROUNDSu; r++) { STEP }
  let all = SUM;
  result[id.x] = TOTAL;
}
"""


def _opencl_chain(width: int, link: str) -> str:
    vector = "float" if width == 1 else f"float{width}"
    load = "x[2]" if width == 1 else f"vload{width}(1, x)"
    lanes = [f"all.s{place:x}" for place in range(width)] if width > 1 else ["all"]
    begin = " ".join(f"TYPE c{k} = first * {1 - k / 16}f;" for k in range(CHAINS))
    return _filled(_OPENCL_CHAIN, vector, load, begin, _step(link), lanes)


def _wgsl_chain(width: int, link: str) -> str:
    vector = "f32" if width == 1 else "vec4f"
    load = "x[2]" if width == 1 else "vec4f(x[4], x[5], x[6], x[7])"
    lanes = ["all.x", "all.y", "all.z", "all.w"] if width > 1 else ["all"]
    begin = "\n  ".join(f"var c{k} = first * {1 - k / 16};" for k in range(CHAINS))
    return _filled(_WGSL_CHAIN, vector, load, begin, _step(link), lanes)


def _step(link: str) -> str:
    """One round: ``link`` in every chain, in turn."""
    return " ".join(
        f"c{k} = {link.replace('c,', f'c{k},').replace('c *', f'c{k} *')};" for _ in range(LINKS) for k in range(CHAINS)
    )


def _filled(text: str, vector: str, load: str, begin: str, step: str, lanes: list[str]) -> str:
    parts = {
        "LOAD": load,
        "BEGIN": begin,
        "STEP": step,
        "SUM": " + ".join(f"c{k}" for k in range(CHAINS)),
        "TOTAL": " + ".join(lanes),
        "ROUNDS": str(ROUNDS),
        "TYPE": vector,
    }
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


def view_of(count: int, info: DeviceInfo) -> Artifact:
    """An artifact whose only work is to bring its input into its output, by PyTorch's copy on all its threads."""
    spec = TensorSpec.of(torch.empty(count, device="meta"))
    call = GraphCall("n0", torch.ops.aten.view.default, (Ref("i0"), (count,)), (), (spec,))
    return _artifact(Graph((GraphInput("i0", spec),), (call,), (Ref("n0"),)), info)


def _product(n: int, info: DeviceInfo) -> Artifact:
    spec = TensorSpec.of(torch.empty(n, n, device="meta"))
    call = GraphCall("n0", torch.ops.aten.mm.default, (Ref("i0"), Ref("i1")), (), (spec,))
    return _artifact(Graph((GraphInput("i0", spec), GraphInput("i1", spec)), (call,), (Ref("n0"),)), info)


def _artifact(graph: Graph, info: DeviceInfo) -> Artifact:
    eager = Eager()
    module = eager.compile(graph, info, eager.options()[0]).module
    assert isinstance(module, Artifact), "the eager backend compiles artifacts"
    return module
