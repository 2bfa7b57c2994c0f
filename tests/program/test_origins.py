"""Nodes have stable ids, the line of the user's code, and the call before decomposition as their origin."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import Tensor, nn

from support import capture_models as models
from tapestry.program.capture import capture
from tapestry.program.graph import Ref, refs_in
from tapestry.program.program import Program

pytestmark = pytest.mark.slow


def attribution() -> Program:
    torch.manual_seed(0)
    return capture(models.Attribution().eval(), (torch.randn(4, 6), torch.randn(1, 3, 4, 4)))


@pytest.fixture(scope="module")
def program() -> Program:
    return attribution()


def ops_by_origin(program: Program) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for node in program.nodes:
        found[program.origins[node.origin].op].append(node.op)
    return found


def test_every_node_has_an_origin_in_the_exported_graph(program: Program) -> None:
    assert all(node.origin in program.origins for node in program.nodes)


def test_decomposed_calls_form_a_group(program: Program) -> None:
    found = ops_by_origin(program)
    assert found["aten.batch_norm.default"] == ["aten._native_batch_norm_legit_no_training.default"]
    assert found["aten.chunk.default"] == ["aten.split.Tensor"]
    assert found["aten.copy_.default"] == ["aten.copy.default", "aten.slice_scatter.default"]
    assert found["aten.linear.default"] == ["aten.linear.default"]


def test_origins_name_program_values_and_each_other(program: Program) -> None:
    known = program.origins.keys() | program.tensors.keys() | {entry.name for entry in program.inputs}
    for origin in program.origins.values():
        assert {ref.name for ref in refs_in([*origin.args, *(value for _, value in origin.kwargs)])} <= known
    linear = program.origins["linear"]
    assert linear.args == (Ref("input:x"), Ref("param:linear.weight"), Ref("param:linear.bias"))
    (gelu,) = [origin for origin in program.origins.values() if origin.op == "aten.gelu.default"]
    assert gelu.kwargs == (("approximate", "tanh"),)
    (left, right) = program.origins["add"].args
    assert isinstance(left, Ref)
    assert isinstance(right, Ref)
    assert (left.item, right.item, left.name == right.name) == (0, 1, True)


def test_lines_are_the_users(program: Program) -> None:
    assert all(node.source.file == models.__file__ for node in program.nodes)
    by_op = {node.op: node.source for node in program.nodes}
    expected = {
        "aten.split.Tensor": "chunk",
        "aten.slice_scatter.default": "copy",
        "aten._native_batch_norm_legit_no_training.default": "batch_norm",
        "aten.linear.default": "linear",
        "aten.exp.default": "helper",
        "aten.gelu.default": "gelu",
        "aten.sum.default": "sum",
    }
    assert {op: by_op[op].line for op in expected} == {op: models.line_of(name) for op, name in expected.items()}
    assert by_op["aten.linear.default"].module == "linear"
    assert by_op["aten.linear.default"].module_type == "torch.nn.modules.linear.Linear"
    assert str(by_op["aten.exp.default"]) == f"{models.__file__}:{models.line_of('helper')} (model)"


def test_a_function_has_its_own_lines() -> None:
    program = capture(models.helper, (torch.ones(3),))
    assert [(node.source.file, node.source.line) for node in program.nodes] == [
        (models.__file__, models.line_of("helper"))
    ]
    assert program.name == "helper"


def test_pytorch_modules_alone_have_their_own_lines() -> None:
    (node,) = capture(nn.Linear(3, 2), (torch.ones(1, 3),)).nodes
    assert node.source.file.endswith("linear.py")
    assert "F.linear" in node.source.code


def test_the_same_model_twice_gives_the_same_ids_and_hash(program: Program) -> None:
    again = attribution()
    assert [node.id for node in again.nodes] == [node.id for node in program.nodes]
    assert (again.graph_hash, again.content_hash) == (program.graph_hash, program.content_hash)


class Stack(nn.Module):
    def __init__(self, extra: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.extra = nn.Linear(4, 4) if extra else None
        self.last = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.extra is not None:
            x = self.extra(x).relu()
        return self.last(self.last(x))


def test_a_layer_more_does_not_rename_the_others() -> None:
    x = torch.ones(2, 4)
    small, large = capture(Stack(False), (x,)), capture(Stack(True), (x,))
    ids = [node.id for node in large.nodes]
    assert [node_id for node_id in ids if node_id.startswith(("first", "last"))] == [node.id for node in small.nodes]
    assert len(set(ids)) == len(ids)
    assert small.graph_hash != large.graph_hash


def test_hashes_see_what_they_should() -> None:
    x = torch.ones(2, 4)
    torch.manual_seed(0)
    model = Stack(False)
    program = capture(model, (x,))
    before = program.content_hash  # the program shares the model's parameters, so the hash is taken first
    with torch.no_grad():
        model.first[0].weight.add_(1)
    other = capture(model, (x,))
    assert other.graph_hash == program.graph_hash
    assert other.content_hash != before
    hashes = {
        program.graph_hash,
        capture(model, (torch.ones(3, 4),)).graph_hash,
        capture(model, (torch.ones(4, 2).t(),)).graph_hash,
        capture(Stack(True), (x,)).graph_hash,
        capture(model.double(), (x.double(),)).graph_hash,
    }
    assert len(hashes) == 5
