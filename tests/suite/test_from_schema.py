"""Suites of operators by name: calls are captured together, and one that cannot be leaves the others alone."""

from __future__ import annotations

import pytest
import torch

from tapestry.program import capture as capturing
from tapestry.suite import from_schema
from tapestry.suite.from_schema import carve_schema
from tapestry.suite.schema.trial import SchemaCall

aten = torch.ops.aten
CALLS = tuple(SchemaCall(aten.amax.default, (torch.arange(float(6 * size)).reshape(6, size), [1]), {}, f"size {size}")
              for size in (1, 2, 3, 4, 5, 7))  # fmt: skip
UNKNOWN_SHAPE = SchemaCall(aten.nonzero.default, (torch.tensor([0, 1, 0, 2]),), {}, "a shape that values decide")


def _offer(monkeypatch: pytest.MonkeyPatch, calls: tuple[SchemaCall, ...]) -> list[int]:
    """Have these calls made of any operator; counts captures by the tensors that each was given."""
    captured: list[int] = []

    def capture(function: object, tensors: tuple[torch.Tensor, ...], **named: str) -> object:
        captured.append(len(tensors))
        return capturing.capture(function, tensors, **named)  # pyright: ignore

    monkeypatch.setattr(from_schema, "calls_for", lambda op, limit: calls)
    monkeypatch.setattr(from_schema, "capture", capture)
    return captured


def test_calls_of_one_operator_are_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = _offer(monkeypatch, CALLS)
    suite = carve_schema(["aten.amax.default"])
    assert captured == [len(CALLS)]
    assert len({case.key for case in suite.cases}) == len(CALLS)
    assert len({case.id for case in suite.cases}) == len(suite.cases)
    for case in suite.cases:
        (given,), (result,) = suite.inputs(case), suite.source(case)
        assert result is not None
        assert torch.equal(result, given.amax(1))


def test_a_call_that_cannot_be_captured_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(monkeypatch, (*CALLS[:2], UNKNOWN_SHAPE, *CALLS[2:]))
    suite = carve_schema(["aten.amax.default"])
    assert len({case.key for case in suite.cases}) == len(CALLS)
    (left_out,) = suite.left_out
    assert left_out.reason.startswith("a shape that values decide: ")
