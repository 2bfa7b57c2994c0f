"""Which schedule of each family of kernels is faster on a device: measured once, and kept in the user's cache.

What is kept is named by the device, its driver and the text of the kernels that were timed; a damaged entry is measured
again. Not here: the schedules (schedule), and using the choice (backend).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path

import msgspec
import platformdirs
import torch

from tapestry.backends.cache import replace_file
from tapestry.backends.kernels.schedule import FAMILIES, KINDS, Family, KernelOptions, Kind
from tapestry.errors import DeviceLostError, TapestryError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.runtime.bind import check_limits
from tapestry.runtime.device import Buffer, Device, DeviceInfo, Launch
from tapestry.runtime.module import Compiled, KernelModule

#: Raised whenever the meaning of an entry changes.
_FORMAT = 1
#: Runs of a kernel that are timed, the fastest of which counts.
_REPEATS = 5
#: A schedule this many times as slow as the fastest one may be so by chance.
_NEARLY = 1.2

aten = torch.ops.aten
_Shape = tuple[int, ...]
#: The call that stands for a family: shapes of a small language model.
_CALLS: dict[Family, tuple[torch._ops.OpOverload, tuple[_Shape, ...], tuple[Argument, ...], _Shape]] = {
    "matmul": (aten.linear.default, ((32, 384), (384, 384)), (), (32, 384)),
    "matvec": (aten.linear.default, ((1, 576), (576, 576)), (), (1, 576)),
    "rows": (aten.softmax.int, ((12, 32, 32),), (-1,), (12, 32, 32)),
    "attention": (aten.scaled_dot_product_attention.default, ((12, 32, 32),) * 3, (), (12, 32, 32)),
}

CompileWith = Callable[[Graph, DeviceInfo, KernelOptions], Compiled]


class Timed(msgspec.Struct, frozen=True):
    """What a schedule took, or why it took nothing: ``seconds`` of a run, 0 where ``reason`` is given."""

    seconds: float = 0.0
    reason: str = ""


class Measured(msgspec.Struct, frozen=True):
    """What each schedule of each family took on a device, by their names."""

    families: dict[str, dict[str, Timed]]

    def best(self, family: Family, usual: Kind) -> Kind | None:
        """The fastest schedule, or the ``usual`` one where it is nearly as fast; None where none ran."""
        names: tuple[Kind, ...] = ("invocation", "large", "workgroup")
        timed = self.families.get(family, {})
        ran: dict[Kind, float] = {
            kind: timed[kind].seconds for kind in names if kind in timed and not timed[kind].reason
        }
        fastest = min(ran, key=lambda kind: ran[kind], default=None)
        return usual if fastest is not None and ran.get(usual, inf) <= _NEARLY * ran[fastest] else fastest

    def __str__(self) -> str:
        return "; ".join(
            f"{family}: {', '.join(f'{kind} {_shown(timed)}' for kind, timed in kinds.items())}"
            for family, kinds in self.families.items()
        )


def _shown(timed: Timed) -> str:
    return f"not used ({timed.reason})" if timed.reason else f"{timed.seconds * 1e3:.2f} ms"


def default_folder() -> Path:
    """Where the measured schedules of devices are kept: under the user's cache directory."""
    return Path(platformdirs.user_cache_dir("tapestry")) / "schedules"


def measured(device: Device, compile_with: CompileWith, folder: Path | None = None) -> Measured:
    """What the schedules take on a device: from the cache, or else by building and timing each there, some seconds.

    ``compile_with`` compiles a graph with a choice of schedules. A schedule that does not compile or run has a reason
    instead of a time.
    """
    candidates = _candidates(device.info, compile_with)
    file = (folder or default_folder()) / _key(device.info, candidates)
    known = _read(file)
    if known is None:
        known = Measured({family: _time_family(device, kinds) for family, kinds in candidates.items()})
        _write(file, known)
    return known


def _candidates(info: DeviceInfo, compile_with: CompileWith) -> dict[str, dict[str, Compiled | str]]:
    """Family → schedule → what is compiled for it, or why it is not."""
    found: dict[str, dict[str, Compiled | str]] = {}
    for family in FAMILIES:
        kinds: tuple[Kind, ...] = (*KINDS, "large") if family == "matmul" else KINDS
        for kind in kinds:
            if kind == "large" and (reason := _too_large(info)):
                found.setdefault(family, {})[kind] = reason
                continue
            try:
                compiled = compile_with(_graph(family), info, msgspec.convert({family: kind}, KernelOptions))
                check_limits(compiled, info)
            except TapestryError as error:
                found.setdefault(family, {})[kind] = str(error)
            else:
                found.setdefault(family, {})[kind] = compiled
    return found


def _too_large(info: DeviceInfo) -> str:
    """Why the large schedule is not tried, known beforehand since trying would cost what it is to save."""
    if "software" not in info.features:
        return "256 sums are more than a graphics processor has registers for"
    if info.kind == "opencl":
        return "the sums of a smaller tile fill a processor's registers already"
    if info.limits.max_loop_iterations:  # Mesa's, which compile by LLVM
        return "this adapter takes ten seconds to build each kernel of that size"
    return ""


def _graph(family: Family) -> Graph:
    target, shapes, further, result = _CALLS[family]
    inputs = tuple(GraphInput(f"i{place}", _spec(shape)) for place, shape in enumerate(shapes))
    arguments = (*(Ref(entry.name) for entry in inputs), *further)
    return Graph(inputs, (Call("n0", target, arguments, (), (_spec(result),)),), (Ref("n0"),))


def _spec(shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec.of(torch.empty(shape, device="meta"))


def _key(info: DeviceInfo, candidates: Mapping[str, Mapping[str, Compiled | str]]) -> str:
    device = [info.kind, info.fingerprint, msgspec.to_builtins(info.limits), sorted(info.features)]
    body = msgspec.msgpack.encode([_FORMAT, device, candidates], order="deterministic")
    return hashlib.sha256(body).hexdigest()


def _read(file: Path) -> Measured | None:
    """The entry, or None when there is none or it is damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        return None
    try:
        return msgspec.msgpack.decode(data[32:], type=Measured)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(file: Path, entry: Measured) -> None:
    """Store an entry atomically. A folder that cannot be written only costs measuring again."""
    body = msgspec.msgpack.encode(entry)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, hashlib.sha256(body).digest() + body)
    except OSError:
        return


def _time_family(device: Device, kinds: Mapping[str, Compiled | str]) -> dict[str, Timed]:
    found: dict[str, Timed] = {}
    for kind, compiled in kinds.items():
        if isinstance(compiled, str):
            found[kind] = Timed(reason=compiled)
            continue
        try:
            found[kind] = _time(device, compiled)
        except TapestryError as error:
            found[kind] = Timed(reason=str(error))
            if isinstance(error, DeviceLostError):
                device.restart()
    return found


def _time(device: Device, compiled: Compiled) -> Timed:
    """What the kernel takes, on zeros."""
    assert isinstance(compiled.module, KernelModule)
    buffers: list[Buffer] = []
    loaded = device.load(compiled.module)
    try:
        for tensor in compiled.tensors:
            buffers.append(device.alloc(tensor.nbytes))
            device.write(buffers[-1], bytes(tensor.nbytes))
        launches = [
            Launch(loaded, launch.kernel, tuple(buffers[arg] for arg in launch.args if isinstance(arg, int)),
                   launch.grid, launch.block)
            for launch in compiled.launches
        ]  # fmt: skip
        return Timed(min(device.time(launches, _REPEATS)))
    finally:
        for buffer in buffers:
            device.free(buffer)
        device.unload(loaded)
