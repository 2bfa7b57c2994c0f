"""The values of the exported graph, which writes in place and through views, in the words of the decomposed one."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from tapestry.program.capture import capture
from tapestry.program.graph import Ref
from tapestry.program.groups import Groups, groups_of
from tapestry.program.program import Program


class Writes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 8))
        self.register_buffer("steps", torch.zeros(1))
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cache, steps = cast("Tensor", self.cache), cast("Tensor", self.steps)
        steps.add_(1)
        cache[1].copy_(x[0])
        hidden = torch.relu(self.norm(x))
        hidden.add_(2)
        cache.mul_(0.5)
        return hidden.mul(2) + steps, cache.sum()


def read() -> tuple[Program, Groups]:
    program = capture(Writes().eval(), (torch.randn(4, 8),))
    return program, groups_of(program)


def given(program: Program, groups: Groups, op: str) -> dict[str, str]:
    """Exported value → the program's, for the first node of an operator."""
    node = next(entry for entry in program.nodes if entry.op == op)
    return {ref.name: now.name for ref, now in groups.by_node[node.id].given.items()}


def test_a_decomposed_call_is_one_group_with_the_arguments_that_were_written() -> None:
    program, groups = read()
    node = next(entry for entry in program.nodes if "batch_norm" in entry.op)
    group = groups.by_node[node.id]
    assert group.origin.op == "aten.batch_norm.default"
    assert group.nodes == (node.id,)
    assert group.results == (Ref(node.id),)
    assert {ref.name for ref in group.given} >= {"input:x", "param:norm.weight", "buffer:norm.running_var"}


def test_a_write_through_a_view_makes_a_new_value_of_its_base() -> None:
    program, groups = read()
    copy = next(entry for entry in program.nodes if entry.op == "aten.copy.default")
    group = groups.by_node[copy.id]
    assert group.origin.op == "aten.copy_.default"
    assert [program.by_id[node_id].op for node_id in group.nodes] == [
        "aten.copy.default",
        "aten.select_scatter.default",
    ]
    (result,) = group.results
    # What multiplies the buffer in place later reads what the scatter made.
    halved = next(entry for entry in program.nodes if entry.origin == "mul_")
    assert groups.by_node[halved.id].given[Ref("buffer:cache")] == result


def test_what_reads_a_value_after_a_write_reads_the_new_one() -> None:
    program, groups = read()
    total = next(entry for entry in program.nodes if entry.op == "aten.sum.default")
    (now,) = groups.by_node[total.id].given.values()
    assert program.by_id[now.name].origin == "mul_"
    last = next(entry for entry in program.nodes if entry.origin == "add")
    assert {program.by_id[entry.name].origin for entry in groups.by_node[last.id].given.values()} == {"mul", "add_"}
    assert given(program, groups, "aten.relu.default") == {
        "batch_norm": next(entry.id for entry in program.nodes if "batch_norm" in entry.op)
    }
