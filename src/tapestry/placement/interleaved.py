"""A region of which the source computes some nodes: what asks whether the others are wrong together without these.

The others go to the device at once, with the source's values in the places of those in between; then these are computed
again from what the device gave, and so on, until what each of them made has reached the last. Not here: what to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from tapestry.placement.plan import cut_out
from tapestry.program.graph import Ref, operands
from tapestry.program.interpret import Values, run_calls
from tapestry.program.region import Region
from tapestry.runtime.module import Compiled
from tapestry.runtime.resident import Resident
from tapestry.suite.injection.platform import Part
from tapestry.suite.on_target import run_once

ValueOf = Callable[[Ref], torch.Tensor]


@dataclass(frozen=True)
class Interleaved:
    """``region`` with the nodes ``given`` on the source. ``part`` are the faults on the others, ``device`` what is left
    to the device, compiled (None: nothing).
    """

    region: Region
    given: frozenset[str]
    part: Part | None
    device: tuple[Region, Compiled] | None
    resident: Resident

    def run(self, value_of: ValueOf) -> Mapping[Ref, torch.Tensor]:
        """The region's outputs."""
        program = self.region.program
        calls = [program.by_id[node_id].call for node_id in self.region.nodes]
        between = [call for call in calls if call.name in self.given]
        made = frozenset(Ref(call.name, item) for call in calls for item in range(len(call.outputs)))
        values: Values = {ref: value_of(ref) for ref in self.region.inputs}
        run_calls(calls, values, made)
        for _ in range(len(calls) - len(between)):
            self._others(values)
            run_calls(between, values, made)
        return {ref: value for ref in self.region.outputs if isinstance(value := values[ref], torch.Tensor)}

    def _others(self, values: Values) -> None:
        """Compute the nodes that are not given, from what is known of all."""

        def known(ref: Ref) -> torch.Tensor:
            value = values[ref]
            assert isinstance(value, torch.Tensor), "regions read tensors only"
            return value

        found: dict[Ref, torch.Tensor] = {}
        if self.part is not None:
            found.update(self.part.run(known))
        if self.device is not None:
            region, compiled = self.device
            inputs = [found[ref] if ref in found else known(ref) for ref in region.inputs]
            results = run_once(self.resident, region.graph, compiled, inputs)
            found.update(zip(region.outputs, results, strict=True))
        values.update(found)


def others(region: Region, given: frozenset[str]) -> Region:
    """The region without the given nodes, which it reads from and hands values to."""
    program = region.program
    nodes = tuple(node_id for node_id in region.nodes if node_id not in given)
    kept = set(nodes)
    between = [ref for node_id in region.nodes if node_id in given for ref in operands(program.by_id[node_id].call)]
    return cut_out(program, nodes, (ref for ref in (*region.outputs, *between) if ref.name in kept))
