"""What travels in one run of a cut program, seen from the cut alone: which values go up, and which come down.

As Run does it (placement.run), once what stays on the device is there. Not here: what a transfer takes (timing).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tapestry.placement.index_checks import index_checks
from tapestry.program.graph import Ref, operands
from tapestry.program.program import Program


@dataclass(frozen=True)
class Transfer:
    """A value that goes up to the device, or comes down from it, once a run."""

    ref: Ref
    up: bool
    nbytes: int

    @property
    def size(self) -> tuple[bool, int]:
        """What its time depends on."""
        return self.up, self.nbytes


def transfers_of(
    program: Program, on_device: Collection[str], sizes: Mapping[Ref, int] | None = None
) -> tuple[Transfer, ...]:
    """The transfers of one run with these nodes on one device and all others on the source.

    ``sizes`` are the bytes in which the device stores values, where they are known; else those of their dtypes.
    """
    there = set(on_device)
    staying = dict(_staying(program, there))
    known = sizes or {}
    down = dict.fromkeys(_down(program, there, staying))
    up = dict.fromkeys(_up(program, there, staying))
    return tuple(
        Transfer(ref, rises, known.get(ref, program.spec(ref).nbytes))
        for refs, rises in ((up, True), (down, False))
        for ref in refs
    )


def _staying(program: Program, there: set[str]) -> Iterator[tuple[Ref, Ref]]:
    """Old value → new one of the states that stay on the device (placement.state.kept_states)."""
    seen = {output.alias.base.name for output in program.outputs if output.alias and isinstance(output.alias.base, Ref)}
    taken: set[Ref] = set()
    for entry in program.state:
        kept = entry.name in program.tensors and entry.name not in seen and entry.result.name in there
        if kept and entry.result not in taken:
            taken.add(entry.result)
            yield Ref(entry.name), entry.result


def _up(program: Program, there: set[str], staying: Mapping[Ref, Ref]) -> Iterator[Ref]:
    for node_id in _in_order(program, there):
        for ref in operands(program.by_id[node_id].call):
            if ref.name not in there and ref not in staying and not program.is_constant(ref):
                yield ref


def _down(program: Program, there: set[str], staying: Mapping[Ref, Ref]) -> Iterator[Ref]:
    for node in program.nodes:
        if node.id in there:
            # Indices are looked at by the host, since kernels do not raise.
            yield from (check.index for check in index_checks(program, node.call) if check.index.name in there)
        elif node.id not in program.folded:
            yield from (ref for ref in operands(node.call) if ref.name in there or ref in staying)
    given = {output.value for output in program.outputs if isinstance(output.value, Ref)}
    for ref in sorted(program.results):
        if ref.name in there and (ref in given or ref not in staying.values()):
            yield ref


def _in_order(program: Program, nodes: set[str]) -> Iterator[str]:
    yield from sorted(nodes, key=program.position.__getitem__)
