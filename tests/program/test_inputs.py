"""Arguments of calls and input sets: what fits a program, and how what does not is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tapestry.errors import InputError, UsageError
from tapestry.program.capture import capture
from tapestry.program.inputs import CallArgs, InputSet, as_input_sets
from tapestry.program.program import Program

X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def program() -> Program:
    def model(x: torch.Tensor, pair: dict, *, scale: float, mode: str, flag: object = None) -> torch.Tensor:
        return (x + pair["a"][0]) * scale

    return capture(model, (X, {"a": [X]}), {"scale": 2.0, "mode": "fast"})


def good() -> tuple[tuple[object, ...], dict[str, object]]:
    return (X, {"a": [X]}), {"scale": 2.0, "mode": "fast"}


def test_leaves_are_bound_by_name(program: Program) -> None:
    bound = program.bind(*good())
    assert [entry.spec is None for entry in program.inputs] == [False, False, True, True]
    assert list(bound) == [entry.name for entry in program.inputs]
    assert list(bound.values())[2:] == [2.0, "fast"]


def test_keywords_may_come_in_any_order(program: Program) -> None:
    args, kwargs = good()
    assert program.bind(args, dict(reversed(kwargs.items()))) == program.bind(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X,), None),
        ((X, {"a": [X]}, X), None),
        ((X, {"b": [X]}), None),
        ((X, {"a": (X,)}), None),
        ((X, {"a": [torch.ones(3, 2)]}), None),
        ((X, {"a": [torch.ones(3)]}), None),
        ((X.double(), {"a": [X]}), None),
        ((X.int(), {"a": [X]}), None),
        (([[1.0] * 3] * 2, {"a": [X]}), None),
        ((None, {"a": [X]}), None),
        ((X.to("meta"), {"a": [X]}), None),
        ((X.to_sparse(), {"a": [X]}), None),
        (None, {"scale": 3.0, "mode": "fast"}),
        (None, {"scale": 2, "mode": "fast"}),
        (None, {"scale": 2.0, "mode": "slow"}),
        (None, {"scale": torch.tensor(2.0), "mode": "fast"}),
        (None, {"scale": 2.0}),
        (None, {"scale": 2.0, "mode": "fast", "flag": 1}),
    ],
)
def test_what_does_not_fit_is_refused(program: Program, args: Any, kwargs: Any) -> None:
    with pytest.raises(InputError):
        program.bind(good()[0] if args is None else args, good()[1] if kwargs is None else kwargs)


def test_a_nan_constant_equals_itself() -> None:
    program = capture(lambda x, y: x * 2, (X, float("nan")))
    program.bind((X, float("nan")), {})
    with pytest.raises(InputError):
        program.bind((X, 1.0), {})


def test_every_way_to_write_input_sets() -> None:
    call = CallArgs((X,), {"k": 1})
    sets = as_input_sets([(X,), {"k": X}, call, InputSet((call, call)), [(X,), {"k": X}, call]])
    assert [len(entry.calls) for entry in sets] == [1, 1, 1, 2, 3]
    assert sets[1].calls[0] == CallArgs((), {"k": X})
    assert sets[4].calls[2] is call


@pytest.mark.parametrize("inputs", [[], (), X, None, "xy", {"k": X}, [X], [[]], [[X]], [3], ["x"], [[[(X,)]]]])
def test_anything_else_is_refused(inputs: Any) -> None:
    with pytest.raises(UsageError):
        as_input_sets(inputs)
