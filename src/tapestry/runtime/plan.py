"""Where each tensor of a compiled region lives: which buffer, shared with what, and what is copied at the end.

Pure planning: no device. It also checks that a compiled region, which may come from a file, makes sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tapestry.errors import FormatError
from tapestry.runtime.module import Artifact, Compiled, KernelModule, LaunchDecl


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes are: ``input`` or ``output`` (of the region, by index), ``constant`` (by its position
    in Compiled.constants) or ``workspace`` (by slot).
    """

    kind: str
    index: int


@dataclass(frozen=True)
class RegionPlan:
    """``places[t]`` for every tensor that anything uses, None for the others; aliases have their base's place.

    ``slots`` are the sizes in bytes of the workspace buffers. ``copies`` lists (source place, region output) for
    outputs that alias an input, a constant or another output; they run after the launches, in order.
    """

    places: tuple[Place | None, ...]
    slots: tuple[int, ...]
    copies: tuple[tuple[Place, int], ...]

    @property
    def workspace_bytes(self) -> int:
        return sum(self.slots)


def plan_region(compiled: Compiled) -> RegionPlan:
    """The plan of a region. FormatError when it contradicts itself."""
    roots = _roots(compiled)
    _check_launches(compiled)
    places: list[Place | None] = [None] * len(compiled.tensors)
    for position, constant in enumerate(compiled.constants):
        _claim(places, roots, constant.tensor, Place("constant", position), "a constant")
    for index, tensor in enumerate(compiled.inputs):
        if tensor >= 0 and places[roots[tensor]] is None:
            places[roots[tensor]] = Place("input", index)
    copied: list[int] = []
    for index, tensor in enumerate(compiled.outputs):
        whole = compiled.tensors[tensor].nbytes == compiled.tensors[roots[tensor]].nbytes
        if whole and places[roots[tensor]] is None:
            places[roots[tensor]] = Place("output", index)
        else:
            copied.append(index)
    kept = {roots[compiled.outputs[index]] for index in copied}
    slots = _assign_workspace(compiled, roots, places, kept)
    _check_updates(compiled, roots, places)
    _check_order(compiled, roots, places)
    copies = tuple((place, index) for index in copied if (place := places[roots[compiled.outputs[index]]]) is not None)
    return RegionPlan(tuple(places[root] for root in roots), slots, copies)


def _roots(compiled: Compiled) -> list[int]:
    """For each tensor the one that owns its buffer. Also checks every index of the region."""
    count = len(compiled.tensors)
    roots = list(range(count))
    for index, tensor in enumerate(compiled.tensors):
        if tensor.alias < 0:
            continue
        if tensor.alias >= index:
            raise FormatError(f"tensor {index} aliases tensor {tensor.alias}: expected an earlier one")
        roots[index] = roots[tensor.alias]
        base = compiled.tensors[roots[index]]
        if tensor.nbytes > base.nbytes:
            raise FormatError(f"tensor {index} has {tensor.nbytes} bytes, its base {roots[index]} only {base.nbytes}")
    named = [*(t for t in compiled.inputs if t != -1), *compiled.outputs, *(c.tensor for c in compiled.constants)]
    named += [argument for launch in compiled.launches for argument in buffers_of(launch)]
    for tensor in named:
        if not 0 <= tensor < count:
            raise FormatError(f"a compiled region of {count} tensors names tensor {tensor}")
    return roots


def buffers_of(launch: LaunchDecl) -> list[int]:
    """The tensors that a launch binds, in argument order."""
    return [argument for argument in launch.args if isinstance(argument, int)]


def _check_launches(compiled: Compiled) -> None:
    module = compiled.module
    if isinstance(module, Artifact):
        if compiled.launches:
            raise FormatError(f"an artifact has no launches, this region declares {len(compiled.launches)}")
        if any(constant.source != "input" for constant in compiled.constants):
            raise FormatError("an artifact takes its prepared constants in its payload, not as tensors")
        return
    access = _access(module)
    for launch in compiled.launches:
        expected = access.get(launch.kernel)
        if expected is None:
            raise FormatError(f"a launch names kernel {launch.kernel!r}; the module has {sorted(access)}")
        if len(buffers_of(launch)) != len(expected):
            raise FormatError(f"kernel {launch.kernel} takes {len(expected)} buffers, got {len(buffers_of(launch))}")


def _access(module: KernelModule) -> dict[str, str]:
    access = {kernel.name: kernel.access for kernel in module.kernels}
    for name, letters in access.items():
        if set(letters) - set("rwx"):
            raise FormatError(f"kernel {name}: access letters are r, w and x, got {letters!r}")
    return access


def _claim(places: list[Place | None], roots: list[int], tensor: int, place: Place, what: str) -> None:
    if places[roots[tensor]] is not None:
        raise FormatError(f"tensor {tensor} is {what} but its buffer is {places[roots[tensor]]} already")
    places[roots[tensor]] = place


def _assign_workspace(
    compiled: Compiled, roots: list[int], places: list[Place | None], kept: set[int]
) -> tuple[int, ...]:
    """Give each remaining tensor a slot. A slot is free again after the last launch that uses its tensor, unless
    the tensor is ``kept`` for a copy at the end.
    """
    last_use: dict[int, int] = {}
    for step, launch in enumerate(compiled.launches):
        for tensor in buffers_of(launch):
            last_use[roots[tensor]] = step
    sizes: list[int] = []
    free: list[int] = []
    for step, launch in enumerate(compiled.launches):
        used = list(dict.fromkeys(roots[tensor] for tensor in buffers_of(launch)))
        for root in used:
            if places[root] is None:
                slot = _take_slot(compiled.tensors[root].nbytes, sizes, free)
                places[root] = Place("workspace", slot)
        # Only now: a tensor written by this launch must not share a buffer with one that it reads.
        for root in used:
            place = places[root]
            if last_use[root] == step and root not in kept and place is not None and place.kind == "workspace":
                free.append(place.index)
    return tuple(sizes)


def _take_slot(nbytes: int, sizes: list[int], free: list[int]) -> int:
    """The smallest free slot that fits, else the largest free one enlarged, else a new one."""
    if not free:
        sizes.append(nbytes)
        return len(sizes) - 1
    fitting = [slot for slot in free if sizes[slot] >= nbytes]
    slot = min(fitting, key=lambda s: sizes[s]) if fitting else max(free, key=lambda s: sizes[s])
    sizes[slot] = max(sizes[slot], nbytes)
    free.remove(slot)
    return slot


def _check_updates(compiled: Compiled, roots: list[int], places: list[Place | None]) -> None:
    """An output that is changed in place has memory of its own, of the size of the input that it begins as."""
    if compiled.updates and isinstance(compiled.module, Artifact):
        raise FormatError("an artifact writes its outputs completely: expected no updates")
    for output, given in compiled.updates:
        if not (0 <= output < len(compiled.outputs) and 0 <= given < len(compiled.inputs)):
            raise FormatError(f"update ({output}, {given}) names an output or input that the region has not")
        tensor, before = compiled.outputs[output], compiled.inputs[given]
        if places[roots[tensor]] != Place("output", output):
            raise FormatError(f"output {output} is changed in place, but has no memory of its own")
        if before < 0 or compiled.tensors[before].nbytes != compiled.tensors[tensor].nbytes:
            raise FormatError(f"output {output} begins as input {given}, which has another size or is not read")


def _check_order(compiled: Compiled, roots: list[int], places: list[Place | None]) -> None:
    """What is only read was written before or came from outside; what is only written doesn't come from outside.

    A letter ``x`` may mean that the backend does not know (module.KernelDecl), so it proves nothing.
    """
    if isinstance(compiled.module, Artifact):
        return
    access = _access(compiled.module)
    outside = {root for root, place in enumerate(places) if place is not None and place.kind in ("input", "constant")}
    written = outside | {roots[compiled.outputs[output]] for output, _ in compiled.updates}
    for launch in compiled.launches:
        letters = list(zip((roots[tensor] for tensor in buffers_of(launch)), access[launch.kernel], strict=True))
        for root, letter in letters:
            if letter == "r" and root not in written:
                raise FormatError(f"kernel {launch.kernel} reads tensor {root}, which nothing has written")
            if letter == "w" and root in outside:
                raise FormatError(f"kernel {launch.kernel} writes tensor {root}, which comes from outside the region")
        written.update(root for root, letter in letters if letter != "r")
    _check_outputs_written(compiled.outputs, roots, written)


def _check_outputs_written(outputs: Sequence[int], roots: list[int], written: set[int]) -> None:
    for index, tensor in enumerate(outputs):
        if roots[tensor] not in written:
            raise FormatError(f"output {index} is tensor {tensor}, which nothing writes")
