"""The interpreter keeps what is asked for and drops the rest, folds constants, and lets others compute and look on."""

from __future__ import annotations

import torch
from torch import Tensor

from support.written_programs import SPEC, call, program_of
from tapestry.program.capture import capture
from tapestry.program.graph import Ref
from tapestry.program.interpret import call_operator, fold, resolve, run_calls, run_program, start_values

aten = torch.ops.aten
X = Ref("input:x")


def test_resolving_arguments() -> None:
    one = torch.ones(1)
    assert resolve((X, (X, None), 3), {X: one}) == [one, [one, None], 3]


def test_values_are_dropped_after_their_last_reader() -> None:
    calls = [
        call("a", aten.exp.default, X),
        call("b", aten.sin.default, Ref("a")),
        call("unread", aten.cos.default, X),
        call("pair", aten.max.dim, Ref("b"), 0, outputs=(SPEC, SPEC)),
        call("c", aten.add.Tensor, Ref("b"), Ref("pair", 0)),
    ]
    alive: list[list[str]] = []
    values: dict[Ref, object] = {X: torch.ones(4)}

    def observe(call: object, args: object, kwargs: object, results: object) -> None:
        alive.append(sorted(ref.name for ref in values if ref != X))

    run_calls(calls, values, frozenset({Ref("c")}), observe=observe)
    assert alive == [[], ["a"], ["b"], ["b"], ["b", "pair"]]
    assert set(values) == {X, Ref("c")}


def test_only_results_remain() -> None:
    program = capture(lambda x: (x.exp().sin(), x.max(0)[1]), (torch.ones(2, 3),))
    values = run_program(program, start_values(program, program.bind((torch.ones(2, 3),), {}), {}))
    assert set(values) == {Ref(program.inputs[0].name)} | program.results


def test_another_may_compute() -> None:
    program = capture(lambda x: x.exp() + 1, (torch.zeros(3),))

    def doubled(call: object, args: tuple[object, ...], kwargs: object) -> object:
        result = call_operator(call, args, kwargs)  # pyright: ignore[reportArgumentType]
        assert isinstance(result, Tensor)
        return result * 2

    values = run_program(program, start_values(program, program.bind((torch.zeros(3),), {}), {}), compute=doubled)
    assert values[program.outputs[0].value].tolist() == [6, 6, 6]  # pyright: ignore


def test_folding_gives_what_others_read() -> None:
    calls = [
        call("table", aten.arange.default, 4),
        call("squared", aten.mul.Tensor, Ref("table"), Ref("table")),
        call("scaled", aten.mul.Tensor, Ref("squared"), Ref("param:w")),
        call("sum", aten.add.Tensor, X, Ref("scaled")),
        call("random", aten.rand_like.default, Ref("squared")),
        call("unwritten", aten.mul.Tensor, Ref("buffer:s"), 2),
    ]
    tensors = {"param:w": torch.full((4,), 3.0), "buffer:s": torch.zeros(4)}
    program = program_of(calls, [Ref("sum"), Ref("table")], tensors=tensors)
    assert program.folded == {"table", "squared", "scaled", "unwritten"}
    found = fold(program)
    assert set(found) == {Ref("table"), Ref("squared"), Ref("scaled")}
    assert found[Ref("scaled")].tolist() == [0, 3, 12, 27]
