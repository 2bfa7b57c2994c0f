"""The ``kernels`` backend: hand-written sources, for what a compiler gets wrong, cannot do, or does slowly.

A region belongs to it when one kernel's pattern matches all of its calls. Not here: kernels.
"""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import msgspec

from tapestry.backends.base import Availability, Backend, Options, Rule
from tapestry.backends.kernels.declare import LANGUAGES, Dispatch, Kernel
from tapestry.backends.kernels.loading import kernels_for
from tapestry.backends.kernels.reading import files_read, reading
from tapestry.backends.kernels.schedule import FAMILIES, Family, KernelOptions, stated
from tapestry.backends.kernels.tuning import measured
from tapestry.backends.rules import Allowed, GraphIndex, Match, Matchable, MatchView
from tapestry.errors import CompileError, UnsupportedError, UsageError
from tapestry.program.graph import Graph, Ref, TensorSpec
from tapestry.program.serial import dtype_name
from tapestry.runtime.device import Device, DeviceInfo
from tapestry.runtime.module import Compiled, ConstantDecl, KernelDecl, KernelModule, LaunchDecl, TensorDecl

#: The kinds of devices for which kernels with several schedules ship.
_MEASURED = frozenset({"opencl", "webgpu"})
#: Where the files of kernels that ship lie.
_SHIPPED = f"{Path(__file__).parent}{os.sep}"


class Kernels(Backend):
    """Takes a region for which a kernel was written; the latest declared one that matches."""

    name: ClassVar[str] = "kernels"
    device_kinds: ClassVar[frozenset[str]] = frozenset(LANGUAGES)
    isolated: ClassVar[bool] = False
    fuses: ClassVar[bool] = False

    def availability(self) -> Availability:
        return Availability(True)

    def rules(self) -> Sequence[Rule]:
        patterns = [entry.pattern for device in LANGUAGES for entry in kernels_for(device)]
        # What a kernel for one call says of a call tells more than what one says that takes its neighbours too.
        patterns.sort(key=lambda pattern: len(pattern.calls))
        return tuple(patterns)

    def matches(self, graph: Matchable, info: DeviceInfo, allowed: Allowed | None = None) -> Iterator[Match]:
        """As any backend's. A user's kernel comes before those that ship, also before one that takes more calls."""
        own = {entry.pattern for entry in kernels_for(info.kind) if not entry.file.startswith(_SHIPPED)}
        found = tuple(super().matches(graph, info, allowed))
        taken = {name for match in found if match.rule in own for name in match.nodes}
        for match in found:
            if len(match.nodes) == 1 or match.rule in own or taken.isdisjoint(match.nodes):
                yield match

    def options(self) -> Sequence[Options]:
        return (KernelOptions(),)

    def settled(self, options: Options, device: Device) -> Options:
        """The options with the schedules that are fastest on the device in place of ``auto``; measured once."""
        own = _own(options)
        open_: list[Family] = [family for family in FAMILIES if getattr(own, family) == "auto"]
        if device.info.kind not in _MEASURED or not open_:
            return own
        found = measured(device, self.compile)
        best = {family: kind for family in open_ if (kind := found.best(family, stated(device.info))) is not None}
        return msgspec.structs.replace(own, **best)

    def remarks(self, device: Device) -> str:
        return str(measured(device, self.compile)) if device.info.kind in _MEASURED else ""

    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        found = _matching(graph, info, _own(options))
        if found is None:
            calls = ", ".join(str(call.target) for call in graph.calls[:4])
            raise UnsupportedError(f"no hand-written kernel for {info.kind} matches {calls}")
        entry, view = found
        return _assembled(entry, _written(entry, view), view, graph, info)

    def fingerprint(self) -> str:
        return "kernels 1"

    def fingerprint_for(self, graph: Graph, info: DeviceInfo, options: Options) -> str:
        """The content of the kernel itself: editing one leaves what others gave untouched."""
        try:
            compiled = self.compile(graph, info, options)
        except (UnsupportedError, CompileError) as error:
            return f"kernels {error}"
        return f"kernels {hashlib.sha256(msgspec.msgpack.encode(compiled)).hexdigest()}"


def _own(options: Options) -> KernelOptions:
    if not isinstance(options, KernelOptions):
        raise UsageError(f"expected KernelOptions, got {type(options).__name__}")
    return options


def _matching(graph: Graph, info: DeviceInfo, options: KernelOptions) -> tuple[Kernel, MatchView] | None:
    """The first kernel that matches the whole graph, in the schedule that the options say where that one matches."""
    index = GraphIndex.of(graph)
    first: tuple[Kernel, MatchView] | None = None
    for entry in kernels_for(info.kind):
        if first is not None and entry.name != first[0].name:
            continue
        view = _view(entry, index, info)
        if view is None:
            continue
        first = first or (entry, view)
        if entry.schedule is None or entry.schedule.kind == options.kind(entry.schedule.family_of(view), info):
            return entry, view
    return first


def _view(entry: Kernel, index: GraphIndex, info: DeviceInfo) -> MatchView | None:
    for match in entry.pattern.matches(index, info):
        if len(match.nodes) == len(index.calls):
            return MatchView(index, info, match.nodes, match.bindings)
    return None


def _written(entry: Kernel, view: MatchView) -> Dispatch:
    """What the kernel's function gives. CompileError, naming its line, when it raises or gives something else."""
    try:
        with reading(entry.file) if files_read(entry.file) else nullcontext():
            dispatch = entry.write(view)
        _check(dispatch)
    except Exception as error:
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == entry.file]
        where = f"{entry.file}:{lines[-1].lineno}" if lines else entry.file
        raise CompileError(f"kernel {entry.name} ({where}) raised {type(error).__name__}: {error}") from error
    return dispatch


def _check(dispatch: object) -> None:
    if not isinstance(dispatch, Dispatch):
        raise TypeError(f"expected a Dispatch, got {type(dispatch).__name__}")


def _assembled(entry: Kernel, dispatch: Dispatch, view: MatchView, graph: Graph, info: DeviceInfo) -> Compiled:
    tensors = [_declared(spec.spec, info) for spec in graph.inputs]
    tensors += [_declared(graph.spec(ref), info) for ref in graph.outputs]
    places = _places(entry, view, graph)
    unknown = [
        name for name in (*dispatch.bindings, *dispatch.updates, *dispatch.updates.values()) if name not in places
    ]
    if unknown:
        raise CompileError(f"kernel {entry.name} binds {unknown[0]!r}; it can bind {', '.join(sorted(places))}")
    unwritten = {f"out{k}" for k in range(len(graph.outputs))} - {_plain(name) for name in dispatch.bindings}
    if unwritten:
        raise CompileError(f"kernel {entry.name} binds no buffer for its result {sorted(unwritten)[0]}")
    first_output = len(graph.inputs)
    access = "".join(
        "r" if places[name] < first_output else "x" if name in dispatch.updates else "w" for name in dispatch.bindings
    )
    updates = tuple((places[name] - first_output, places[given]) for name, given in dispatch.updates.items())
    module = KernelModule(
        LANGUAGES[info.kind],
        _with_constants(dispatch.source, dispatch.constants, info.kind),
        (KernelDecl(dispatch.entry, access),),
        dispatch.options,
    )
    launch = LaunchDecl(
        dispatch.entry,
        tuple(places[name] for name in dispatch.bindings),
        _three(entry, "groups", dispatch.groups),
        _three(entry, "workgroup", dispatch.workgroup),
    )
    constants = tuple(ConstantDecl(place, "input", place) for place, given in enumerate(graph.inputs) if given.constant)
    return Compiled(
        backend=Kernels.name,
        module=module,
        tensors=tuple(tensors),
        inputs=tuple(range(first_output)),
        outputs=tuple(range(first_output, len(tensors))),
        launches=(launch,),
        constants=constants,
        updates=updates,
    )


def _places(entry: Kernel, view: MatchView, graph: Graph) -> dict[str, int]:
    """What a kernel may bind → the tensor: captures that are tensors read from outside, and results."""
    inputs = {given.name: place for place, given in enumerate(graph.inputs)}
    found = {
        name: inputs[value.name]
        for name, value in view.bindings.items()
        if isinstance(value, Ref) and value.name in inputs
    }
    for name, value in view.bindings.items():
        if isinstance(value, tuple):
            refs = [part for part in value if isinstance(part, Ref) and part.name in inputs]
            found.update({f"{name}{k}": inputs[part.name] for k, part in enumerate(refs)})
    count = len(graph.inputs)
    found.update({f"out{k}": count + k for k in range(len(graph.outputs))})
    found["out"] = count
    return found


def _plain(name: str) -> str:
    return "out0" if name == "out" else name


def _declared(spec: TensorSpec, info: DeviceInfo) -> TensorDecl:
    dtype = dtype_name(spec.dtype)
    return TensorDecl(spec.shape, dtype, _storage(dtype, info))


def _storage(dtype: str, info: DeviceInfo) -> str:
    """As the compiler stores it, so that values pass between the two: bool as bytes, 16-bit floats as their bits.

    Where kernels address words only (WGSL), bool and narrow integers are int32, 16-bit floats rounded float32 values.
    """
    if "uint8" not in info.dtypes:
        return _WORDS.get(dtype, dtype)
    if dtype == "bool":
        return "uint8"
    if dtype in {"float16", "bfloat16"}:
        return "uint16"
    return dtype


_WORDS = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16", "int64"), "int32"),
    **dict.fromkeys(("float16", "bfloat16"), "float32"),
}


def _three(entry: Kernel, what: str, sizes: tuple[int, ...]) -> tuple[int, int, int]:
    whole = all(isinstance(size, int) and size >= 0 for size in sizes)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not whole or not 1 <= len(sizes) <= 3:
        raise CompileError(f"kernel {entry.name}: expected one to three whole numbers for {what}, got {sizes}")
    padded = (*sizes, 1, 1)
    return padded[0], padded[1], padded[2]


def _with_constants(source: str, constants: Mapping[str, int | float], kind: str) -> str:
    lines = [_constant(name, value, kind) for name, value in constants.items()]
    return "\n".join([*lines, source])


def _constant(name: str, value: int | float, kind: str) -> str:
    if kind == "webgpu":
        return f"const {name} = {value!r}{'u' if isinstance(value, int) and value >= 0 else ''};"
    return f"#define {name} ({value!r}{'f' if isinstance(value, float) else ''})"
