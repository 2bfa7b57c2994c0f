"""Reducing: to the smallest subject that fails in the same way, on devices that are wrong in every way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from support.subjects import Fault, Faulty, shapes, subject_of, subject_of_module, values
from tapestry.errors import CompileError, DeviceError, DeviceLostError
from tapestry.numerics.verdict import Verdict
from tapestry.program.serial import dumps, overload_name
from tapestry.suite.repro.attempt import Attempt, ended, judged
from tapestry.suite.repro.reduce import Reduction, reduce_case
from tapestry.suite.repro.search import Limits
from tapestry.suite.repro.subject import Subject

aten = torch.ops.aten
NAN = float("nan")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reduced(subject: Subject, fault: Fault) -> Reduction:
    device = Faulty(fault)
    found = reduce_case(device, subject)
    assert found.steady
    assert found.runs == device.runs <= 302
    assert found.attempt.failed
    return found


def test_nan_that_is_lost() -> None:
    x = randn(8, 16)
    x[3, 5] = NAN
    found = reduced(subject_of(aten.relu.default, x), lambda _, right: [right[0].nan_to_num()])
    assert found.attempt.way == "fail: NaN is lost"
    assert shapes(found.subject) == [(1, 1)]
    assert bool(found.subject.inputs[0].isnan().all())
    assert found.subject.inputs[0].untyped_storage().nbytes() == 4


def test_an_outlier_among_large_values() -> None:
    x = randn(4, 6, 64)
    x[2, 3, 40] = 300.5

    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        return [right[0].where(subject.inputs[0] < 250, 0.0)]

    found = reduced(subject_of(aten.layer_norm.default, x, [64], randn(64), randn(64, seed=1), 1e-6), fault)
    # Two elements: of one, layer_norm is 0, which is what the fault gives.
    assert shapes(found.subject) == [(1, 1, 2)]
    assert sorted(found.subject.inputs[0].flatten().tolist()) in ([0.0, 300.0], [1.0, 300.0])
    assert found.subject.constant_elements == 0
    assert found.subject.graph.calls[0].args[1:] == ((2,),)


def test_a_matrix_product_by_its_linked_sizes() -> None:
    found = reduced(
        subject_of(aten.linear.default, randn(3, 32), randn(48, 32, seed=1), randn(48, seed=2)),
        lambda _, right: [right[0] * 1.01],
    )
    assert shapes(found.subject) == [(1, 1), (1, 1)]
    assert values(found.subject.inputs) == [[[1.0]], [[1.0]]]
    assert found.done["arguments left to their defaults"] == 1


def test_groups_of_a_convolution_shrink_together() -> None:
    args = (randn(2, 16, 6, 6), randn(8, 8, 3, 3, seed=1), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    found = reduced(subject_of(aten.convolution.default, *args), lambda _, right: [right[0] + 1])
    assert found.subject.elements <= 8
    assert found.subject.inputs[0].shape[1] == 2 * found.subject.inputs[1].shape[1]


def test_a_size_is_as_small_as_the_fault_allows() -> None:
    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        return [right[0] + 1] if subject.inputs[0].shape[-1] >= 5 else right

    found = reduced(subject_of(aten.sum.dim_IntList, randn(4, 37), [-1]), fault)
    assert shapes(found.subject) == [(1, 5)]


def test_a_tensor_that_is_read_twice_stays_one() -> None:
    x = randn(6, 6)
    found = reduced(subject_of(aten.mul.Tensor, x, x), lambda _, right: [right[0] + 1])
    assert shapes(found.subject) == [(1, 1)]


def test_a_list_of_tensors_gets_shorter() -> None:
    parts = [randn(4, 5), randn(4, 7), randn(4, 2)]
    found = reduced(subject_of(aten.cat.default, parts, 1), lambda _, right: [right[0] + 1])
    assert shapes(found.subject) == [(1, 1)]
    assert found.subject.graph.calls[0].args == (((found.subject.graph.calls[0].args[0][0]),),)  # type: ignore[index]


def test_large_integers_become_the_nearest_power_of_two() -> None:
    found = reduced(
        subject_of(aten.mul.Tensor, torch.tensor([1, 7, -(2**40) + 3]), torch.tensor(3)),
        lambda _, right: [right[0].to(torch.int32).long()],
    )
    assert shapes(found.subject)[0] == (1,)
    assert abs(int(found.subject.inputs[0])) in (2**39, 2**40 - 3)


def test_strides_are_dropped_where_they_do_not_matter_and_kept_where_they_do() -> None:
    x = randn(6, 4).t()
    found = reduced(subject_of(aten.relu.default, x), lambda _, right: [right[0] + 1])
    assert all(tensor.is_contiguous() for tensor in found.subject.inputs)

    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        return [right[0] if subject.inputs[0].is_contiguous() else right[0] + 1]

    found = reduced(subject_of(aten.relu.default, x), fault)
    assert not found.subject.inputs[0].is_contiguous()
    assert found.subject.graph.inputs[0].spec.stride == found.subject.inputs[0].stride()
    assert found.subject.elements <= 6


def test_expanded_inputs_stay_expanded() -> None:
    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        return [right[0] + 1 if 0 in subject.inputs[0].stride() else right[0]]

    found = reduced(subject_of(aten.relu.default, randn(1, 4).expand(8, 4)), fault)
    assert 0 in found.subject.inputs[0].stride()
    assert found.subject.inputs[0].shape[1] == 1


def test_indices_stay_inside() -> None:
    weight, index = randn(20, 6), torch.tensor([[3, 19, 0], [7, 7, 12]])
    found = reduced(subject_of(aten.embedding.default, weight, index), lambda _, right: [right[0] + 1])
    rows = found.subject.inputs[0].shape[0]
    assert rows == 1
    assert bool((found.subject.inputs[1] < rows).all())


def test_lengths_are_left_alone() -> None:
    x, repeats = randn(3), torch.tensor([2, 1, 3])
    found = reduced(subject_of(aten.repeat_interleave.self_Tensor, x, repeats), lambda _, right: [right[0] + 1])
    assert set(found.subject.inputs[1].tolist()) <= {1, 2, 3}


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        (lambda _, right: [right[0].unsqueeze(0)], "fail: structure"),
        (lambda _, right: [right[0].double()], "fail: structure"),
        (lambda _, right: [right[0] * NAN], "fail: NaN where there is none"),
        (lambda _, right: [right[0] / 0], "fail: infinity"),
        (lambda _, right: [right[0] + 1], "fail: values"),
    ],
)
def test_ways_to_fail(fault: Fault, way: str) -> None:
    x = randn(4, 4).abs() + 0.5
    found = reduced(subject_of(aten.relu.default, x), fault)
    assert found.attempt.way == way
    assert found.subject.elements == 1


def test_another_way_to_fail_is_not_followed() -> None:
    """Few columns give NaN, which is another fault than the one at hand."""

    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        return [right[0] * NAN if subject.inputs[0].shape[-1] < 4 else right[0] + 1]

    found = reduced(subject_of(aten.relu.default, randn(8, 8)), fault)
    assert found.attempt.way == "fail: values"
    assert found.subject.inputs[0].shape[-1] == 4


def by_shape(error: Callable[[Subject], Attempt | None]) -> Callable[[Subject], Attempt]:
    def run(subject: Subject) -> Attempt:
        return error(subject) or judged(subject, [tensor.clone() for tensor in right_of(subject)])

    return run


def right_of(subject: Subject) -> list[Tensor]:
    call = subject.call
    return [call.target(*call.args, **call.kwargs)]


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (lambda: ended(Verdict.UNSUPPORTED, "no rule for 7 dims"), Verdict.UNSUPPORTED),
        (lambda: ended(Verdict.ERROR, CompileError("line 12: no such thing")), Verdict.ERROR),
        (lambda: ended(Verdict.CRASHED, DeviceLostError("the worker died")), Verdict.CRASHED),
        (lambda: ended(Verdict.TIMEOUT, DeviceLostError("did not answer")), Verdict.TIMEOUT),
    ],
)
def test_what_gives_no_result_is_reduced_by_shape(make: Callable[[], Attempt], verdict: Verdict) -> None:
    run = by_shape(lambda subject: make() if subject.inputs[0].shape[0] >= 3 else None)
    found = reduce_case(run, subject_of(aten.relu.default, randn(16, 9)))
    assert found.attempt.judgement.verdict is verdict
    assert shapes(found.subject) == [(3, 1)]
    assert not bool(found.subject.inputs[0].any())
    assert found.attempt.got is None


def test_numbers_in_an_error_do_not_make_it_another_but_its_words_do() -> None:
    def run(subject: Subject) -> Attempt:
        rows = subject.inputs[0].shape[0]
        words = "out of memory" if rows < 4 else "too many rows"
        return ended(Verdict.ERROR, DeviceError(f"{words}: {rows} at 0x{id(subject):x}"))

    found = reduce_case(run, subject_of(aten.relu.default, randn(16, 9)))
    assert shapes(found.subject) == [(4, 1)]


def test_runs_that_lose_the_device_are_fewer() -> None:
    lost = [0]

    def run(subject: Subject) -> Attempt:
        if subject.elements > 40:
            lost[0] += 1
            return ended(Verdict.CRASHED, "the worker died")
        return judged(subject, right_of(subject))

    found = reduce_case(run, subject_of(aten.relu.default, randn(64, 64)), Limits(lost=4))
    assert lost[0] == 6  # the first and the last, which confirm, and four in between
    assert 40 < found.subject.elements < 64 * 64


def test_a_failure_that_does_not_come_again_is_left_as_it_is() -> None:
    subject = subject_of(aten.relu.default, randn(4, 4))
    failing = iter([True])
    found = reduce_case(
        Faulty(lambda _, right: [right[0] + 1] if next(failing, False) else right), subject
    )  # fmt: skip
    assert found.attempt.failed
    assert found.subject is subject

    found = reduce_case(Faulty(lambda _, right: right), subject)
    assert not found.steady
    assert not found.attempt.failed


def test_a_reduced_case_that_passes_in_the_end_is_not_believed() -> None:
    """Fails three times, and then never again."""
    left = [3]

    def fault(_: Subject, right: list[Tensor]) -> list[Tensor]:
        left[0] -= 1
        return [right[0] + 1] if left[0] >= 0 else right

    subject = subject_of(aten.relu.default, randn(64, 64))
    found = reduce_case(Faulty(fault), subject)
    assert found.subject is subject
    assert found.attempt.failed
    assert not found.steady


def test_the_same_every_time() -> None:
    def once() -> tuple[bytes, list[object], int]:
        x = randn(5, 9)
        x[2, 2] = 77.123
        found = reduced(
            subject_of(aten.gelu.default, x, approximate="tanh"),
            lambda subject, right: [right[0].where(subject.inputs[0] < 50.0, 0.0)],
        )
        return dumps(found.subject.graph), values(found.subject.inputs), found.runs

    assert once() == once()


class Chain(torch.nn.Module):
    """Six calls, one of them with two results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(16, 12)
        self.norm = torch.nn.LayerNorm(12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.norm(torch.nn.functional.gelu(self.up(x))))
        largest, where = torch.max(y, -1)
        return largest * 2, where


def _after(subject: Subject, first: str, second: str) -> bool:
    names = [overload_name(call.target) for call in subject.graph.calls]
    return any(pair == (first, second) for pair in pairwise(names))


def test_a_graph_loses_calls_at_both_ends() -> None:
    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        wrong = _after(subject, "aten.gelu.default", "aten.layer_norm.default")
        return [entry + 1 if wrong and entry.is_floating_point() else entry for entry in right]

    subject = subject_of_module(Chain().eval(), randn(5, 16))
    assert len(subject.graph.calls) == 6
    found = reduced(subject, fault)
    assert [overload_name(call.target) for call in found.subject.graph.calls] == [
        "aten.gelu.default", "aten.layer_norm.default",
    ]  # fmt: skip
    assert found.subject.elements <= 6
    assert [entry.name for entry in found.subject.graph.inputs] == [
        f"i{place}" for place in range(len(found.subject.inputs))
    ]


def test_a_graph_may_end_as_a_single_call() -> None:
    subject = subject_of_module(Chain().eval(), randn(5, 16))

    def fault(subject: Subject, right: list[Tensor]) -> list[Tensor]:
        wrong = any("layer_norm" in overload_name(call.target) for call in subject.graph.calls)
        return [entry + 1 if wrong and entry.is_floating_point() else entry for entry in right]

    found = reduced(subject, fault)
    assert [overload_name(call.target) for call in found.subject.graph.calls] == ["aten.layer_norm.default"]
    assert found.subject.elements <= 2
