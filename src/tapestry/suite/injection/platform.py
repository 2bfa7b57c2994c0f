"""A platform with faults: what the named calls of a region give there, in place of the backend's results.

The named calls are computed on the host, by the faults, on what flows into them; the backend computes the others.
Not here: which steps a region has (parts), and who runs the others (placement, on_target).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch

from tapestry.errors import UsageError
from tapestry.program.graph import Ref
from tapestry.program.groups import Groups, groups_of
from tapestry.program.program import Program
from tapestry.program.region import region_of
from tapestry.suite.audit.faults import Fault
from tapestry.suite.carve import nodes_by_key
from tapestry.suite.composition import steps as chain
from tapestry.suite.injection.parts import Made, Outside, PartStep, StepArgument, steps_of

#: Gives a program's value that is not made inside of a region.
ValueOf = Callable[[Ref], torch.Tensor]
_READING = "aten.alias.default"


class Platform:
    """The faults of a target, for one program. ``digest`` names them in keys of stored results.

    UsageError when a fault names no call of the program.
    """

    def __init__(self, program: Program, faults: Sequence[Fault], digest: str) -> None:
        self.program = program
        self.faults = tuple(faults)
        self.digest = digest
        self._parts: dict[tuple[str, ...], Part | None] = {}
        self._check_named()

    @cached_property
    def _groups(self) -> Groups:
        return groups_of(self.program)

    @cached_property
    def _all_ops(self) -> frozenset[str]:
        free = [node for node in self.program.nodes if node.id not in self.program.folded]
        origins = (self.program.origins.get(node.origin) for node in free)
        return frozenset({node.op for node in free} | {origin.op for origin in origins if origin is not None})

    def _check_named(self) -> None:
        for fault in self.faults:
            missing = (
                [op for op in fault.ops if op not in self._all_ops]
                if fault.ops
                else [] if any(op in self._all_ops for op in fault.targets) else [fault.op]
            )  # fmt: skip
            if missing:
                raise UsageError(
                    f"fault {fault.name} needs a call of {missing[0]}, which {self.program.name} has not; "
                    f"it has {', '.join(sorted(self._all_ops))}"
                )

    def part(self, nodes: Sequence[str]) -> Part | None:
        """What a region of these nodes is on this platform; None when no fault has to do with it."""
        key = tuple(nodes)
        if key not in self._parts:
            self._parts[key] = self._made(key)
        return self._parts[key]

    def part_of(self, key: str) -> Part | None:
        """The same for the cases of an operator key: of the first of its nodes that a fault has to do with."""
        parts = (self.part((node_id,)) for node_id in self._by_key.get(key, ()))
        return next((part for part in parts if part is not None), None)

    @cached_property
    def _by_key(self) -> dict[str, tuple[str, ...]]:
        return nodes_by_key(self.program)

    def _made(self, nodes: tuple[str, ...]) -> Part | None:
        steps = steps_of(self.program, self._groups, nodes)
        ops = {step.op for step in steps}
        single = {op: fault for fault in self.faults if not fault.ops for op in fault.targets if op in ops}
        joint = tuple(fault for fault in self.faults if fault.ops and set(fault.ops) <= ops)
        if not single and not joint:
            return None
        return Part(self.program, steps, single, joint)


@dataclass(frozen=True)
class Part:
    """A region's steps and the faults on them: ``single`` by overload, ``joint`` where all that they need is there."""

    program: Program
    steps: tuple[PartStep, ...]
    single: Mapping[str, Fault]
    joint: tuple[Fault, ...]

    @cached_property
    def named(self) -> frozenset[str]:
        """The nodes whose results come from here."""
        return frozenset(node_id for place in self._named for node_id in self.steps[place].nodes)

    @cached_property
    def reads(self) -> tuple[Ref, ...]:
        """The program's values from outside that the steps read."""
        found: dict[Ref, None] = {}
        for step in self.steps:
            for leaf in chain.leaves([step.args, dict(step.kwargs)]):
                if isinstance(leaf, Outside):
                    found[leaf.now] = None
        return tuple(found)

    @cached_property
    def _named(self) -> tuple[int, ...]:
        ops = {*self.single, *(op for fault in self.joint for op in fault.ops)}
        return tuple(place for place, step in enumerate(self.steps) if step.op in ops)

    def run(self, value_of: ValueOf, everything: bool = False) -> dict[Ref, torch.Tensor]:
        """The named nodes' results that are read elsewhere, or those of all nodes. What a fault raises is passed on."""
        wrong = self._joint_results(value_of)
        found: dict[Ref, torch.Tensor] = {}
        given = _Tensors(value_of)
        results: list[object] = []
        with torch.no_grad():
            for place, step in enumerate(self.steps):
                args = tuple(given.filled(entry, results) for entry in step.args)
                kwargs = {name: given.filled(entry, results) for name, entry in step.kwargs.items()}
                results.append(self._result(place, step, args, kwargs, wrong))
                if everything or place in self._named:
                    written = [given.filled(entry, results) for entry in step.writes]
                    found.update(self._matched(step, results[-1], written))
        return found

    def run_graph(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs of the region's own graph on other inputs, in its order."""
        region = region_of(self.program, [node_id for step in self.steps for node_id in step.nodes])
        given = dict(zip(region.inputs, inputs, strict=True))
        found = self.run(given.__getitem__, everything=True)
        return [found[ref] for ref in region.outputs]

    def _result(
        self,
        place: int,
        step: PartStep,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        wrong: Mapping[int, object],
    ) -> object:
        if place in wrong:
            result = wrong[place]
            if step.writes and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor):
                return args[0].copy_(result)  # later steps read what was written
            return result
        if step.op in self.single:
            return self.single[step.op].apply(args, kwargs)
        return step.target(*args, **kwargs)

    def _joint_results(self, value_of: ValueOf) -> dict[int, object]:
        """The wrong results that faults on several calls give, by step."""
        wrong: dict[int, object] = {}
        if not self.joint:
            return wrong
        right = self._chain_results(None, value_of)
        for fault in self.joint:
            results = self._chain_results(fault, value_of)
            for place, step in enumerate(self.steps):
                if step.op in fault.ops and not _same(results[place], right[place]):
                    wrong.setdefault(place, results[place])
        return wrong

    def _chain_results(self, fault: Fault | None, value_of: ValueOf) -> list[object]:
        """What the steps give, right or by a fault, each copied after the last."""
        given = _Tensors(value_of)
        steps = [
            chain.Step(
                step.op,
                tuple(given.linked(entry) for entry in step.args),
                {name: given.linked(entry) for name, entry in step.kwargs.items()},
            )
            for step in self.steps
        ]
        # A value that leaves the part is read, too.
        inside = {leaf.index for step in steps for leaf in chain.step_leaves(step) if isinstance(leaf, chain.Ref)}
        readers = [
            chain.Step(_READING, (chain.Ref(place),), {})
            for place, step in enumerate(self.steps)
            if step.results and (place not in inside or self._leaves(step)) and not step.writes and _is_one(step)
        ]
        with torch.no_grad():
            if fault is None:
                results = chain.run_steps([*steps, *readers])
            else:
                results = chain.apply_fault(fault, [*steps, *readers])
        return [_copied(entry) for entry in results[: len(steps)]]

    def _leaves(self, step: PartStep) -> bool:
        inside = {node_id for entry in self.steps for node_id in entry.nodes}
        return any(
            ref in self.program.results or any(user not in inside for user in self.program.users.get(ref, ()))
            for ref in step.results
        )

    def _matched(self, step: PartStep, result: object, written: Sequence[object]) -> dict[Ref, torch.Tensor]:
        """The program's values that a step's result holds, copied. UsageError where one is not in it."""
        several = isinstance(result, tuple | list)
        made = list(cast("Sequence[object]", result)) if several else [result]
        tensors = [entry for entry in made if isinstance(entry, torch.Tensor)]
        found: dict[Ref, torch.Tensor] = {}
        for ref in step.results:
            spec = self.program.spec(ref)
            at_item = [made[ref.item]] if several and ref.item < len(made) else []
            whole = [*tensors, *(entry for entry in written if isinstance(entry, torch.Tensor))]
            # What was written through a view is read in what it is a view of.
            bases = [entry._base for entry in whole if entry._base is not None]  # noqa: SLF001
            for entry in [*at_item, *whole, *bases]:
                if isinstance(entry, torch.Tensor) and (tuple(entry.shape), entry.dtype) == (spec.shape, spec.dtype):
                    found[ref] = entry.detach().clone()
                    break
            else:
                shapes = ", ".join(f"{entry.dtype} {list(entry.shape)}" for entry in tensors) or "no tensor"
                raise UsageError(
                    f"the fault on {step.op} gave {shapes}; the program reads {spec.dtype} {list(spec.shape)} from it"
                )
        return found


class _Tensors:
    """The tensors of one run of a part: a copy of each value from outside, the same one wherever it is read."""

    def __init__(self, value_of: ValueOf) -> None:
        self._value_of = value_of
        self._copies: dict[Outside, torch.Tensor] = {}

    def of(self, entry: Outside) -> torch.Tensor:
        if entry not in self._copies:
            self._copies[entry] = _preserved(self._value_of(entry.now))
        return self._copies[entry]

    def filled(self, value: StepArgument, results: Sequence[object]) -> object:
        """The argument itself."""
        if isinstance(value, Made):
            made = results[value.step]
            return made if value.item is None else cast("Sequence[object]", made)[value.item]
        if isinstance(value, Outside):
            return self.of(value)
        if isinstance(value, tuple):
            return [self.filled(entry, results) for entry in value]
        return value

    def linked(self, value: StepArgument) -> object:
        """The argument in a chain: tensors, and references to earlier steps."""
        if isinstance(value, Made):
            return chain.Ref(value.step, value.item)
        if isinstance(value, Outside):
            return self.of(value)
        if isinstance(value, tuple):
            return [self.linked(entry) for entry in value]
        return value


def _preserved(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


def _copied(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return _preserved(value)
    if isinstance(value, tuple | list):
        return [_copied(entry) for entry in cast("Sequence[object]", value)]
    return value


def _same(one: object, other: object) -> bool:
    """Bit for bit, NaN where NaN is."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        pair = cast("Sequence[object]", one), cast("Sequence[object]", other)
        return len(pair[0]) == len(pair[1]) and all(map(_same, *pair))
    return one == other


def _is_one(step: PartStep) -> bool:
    returns: Any = step.target._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"
