"""Carving keeps the calls whose values differ, over input sets and steps, with their strides, results and oracle."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from support.eager import same_bits
from tapestry.errors import UsageError
from tapestry.numerics.no_oracle import NoOracle
from tapestry.program.capture import capture
from tapestry.program.interpret import run_graph
from tapestry.program.program import Program
from tapestry.suite import carve as carve_module
from tapestry.suite.carve import carve
from tapestry.suite.case import SAME_AS_SOURCE, Case, Suite


def ops(suite: Suite) -> Counter[str]:
    return Counter(case.op.split(".")[1] for case in suite.cases)


def cases_of(suite: Suite, op: str) -> list[Case]:
    return [case for case in suite.cases if case.op.split(".")[1] == op]


def assert_sound(suite: Suite) -> None:
    """Every case gives its source's result again, bit for bit, and its oracle agrees with it."""
    assert len({case.id for case in suite.cases}) == len(suite.cases)
    used: set[str | None] = set()
    for case in suite.cases:
        inputs = suite.inputs(case)
        graph = case.load_graph()
        for tensor, entry in zip(inputs, graph.inputs, strict=True):
            assert (tuple(tensor.shape), tensor.dtype) == (entry.spec.shape, entry.spec.dtype)
            assert tuple(tensor.stride()) == entry.spec.stride
        source = suite.source(case)
        for ref, got in zip(graph.outputs, run_graph(graph, inputs), strict=True):
            assert same_bits(got, source[ref.item]), case.id
        oracle = suite.oracle(case)
        if oracle is not None:
            for got, want in zip(source, oracle, strict=True):
                assert (got is None) or (want is not None and got.shape == want.shape)
        used |= {*case.inputs, *case.source, *case.oracle}
    assert used - {None, SAME_AS_SOURCE} == suite.tensors.keys()


class Tower(nn.Module):
    """Equal layers whose activations grow."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = factors
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in factors])

    def forward(self, x: Tensor) -> Tensor:
        for layer, factor in zip(self.layers, self.factors, strict=True):
            x = torch.tanh(layer(x) * factor)
        return x


@cache
def tower(*factors: float) -> Program:
    torch.manual_seed(0)
    return capture(Tower(list(factors)), (torch.randn(2, 4),))


def test_equal_layers_share_cases() -> None:
    program = tower(1, 1, 1)
    suite = carve(program, [(torch.randn(2, 4),)])
    assert_sound(suite)
    for case in cases_of(suite, "tanh"):
        assert case.nodes == ("tanh", "tanh#1", "tanh#2")
        assert case.origin_op == "aten.tanh.default"
        assert "test_carve.py" in case.source_line
    assert len({case.key for case in cases_of(suite, "linear")}) == 1


def test_the_outlier_of_a_late_layer_is_kept() -> None:
    program = tower(1, 1, 1, 1, 1, 1, 1, 1e6)
    suite = carve(program, [(torch.randn(2, 4),)])
    assert "tanh#7" in {case.node for case in cases_of(suite, "tanh")}


class Decode(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(3, 4))
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        self.cache.index_copy_(0, place, x)
        return torch.relu(self.cache * self.weight).sum(0)


def step(value: float, place: int) -> tuple[Tensor, Tensor]:
    return torch.full((1, 4), float(value)), torch.tensor([place])


def test_steps_carry_state_and_sets_begin_anew() -> None:
    program = capture(Decode(), step(1, 0))
    suite = carve(program, [[step(5, 0), step(-7000, 1), step(math.nan, 2)], step(3, 1)])
    assert_sound(suite)
    assert (suite.info.input_sets, suite.info.calls) == (2, 4)
    products = {(case.input_set, case.call): suite.inputs(case)[0] for case in cases_of(suite, "mul")}
    assert products[0, 0].tolist() == [[5] * 4, [0] * 4, [0] * 4]
    assert products[0, 1].tolist() == [[5] * 4, [-7000] * 4, [0] * 4]
    assert products[0, 2][:2].tolist() == [[5] * 4, [-7000] * 4]
    assert bool(products[0, 2][2].isnan().all())
    last = next(tensor for (entry, _), tensor in products.items() if entry == 1) if len(products) > 3 else None
    assert last is None or last.tolist() == [[0] * 4, [3] * 4, [0] * 4]
    assert program.tensors["buffer:cache"].count_nonzero() == 0


VALUES = {
    "ordinary": [1.0, 2.0],
    "nan": [1.0, math.nan],
    "+inf": [1.0, math.inf],
    "-inf": [1.0, -math.inf],
    "saturated": [1.0, 3e38],
    "zeros": [1.0, 0.0],
    "subnormal": [1.0, 1e-42],
    "negative": [-1.0, -2.0],
}


def test_values_of_every_kind_are_kept() -> None:
    program = capture(lambda x: x.sqrt(), (torch.ones(2),))
    inputs = [(torch.tensor(values),) for values in (*VALUES.values(), *([[1.0, 2.0]] * 5))]
    suite = carve(program, inputs)
    assert_sound(suite)
    kept = [suite.inputs(case)[0] for case in cases_of(suite, "sqrt")]
    found = torch.stack(kept)
    assert bool(found.isnan().any() and found.isposinf().any() and found.isneginf().any())
    assert bool((found == 0).any() and (found == 3e38).any() and ((found > 0) & (found < 1e-38)).any())
    assert len(kept) <= 2 * carve_module.SAMPLES + 1
    assert sum(entry.samples for entry in suite.left_out) == len(inputs) - len(kept)
    assert {entry.reason for entry in suite.left_out} >= {"values like those of a case that is kept"}


def test_extreme_integers_are_kept() -> None:
    program = capture(lambda x: x + 1, (torch.ones(2, dtype=torch.int32),))
    rows = [[1, 2], [3, 4], [2**31 - 1, 0], [-(2**31), 0], [0, 0]]
    suite = carve(program, [(torch.tensor(row, dtype=torch.int32),) for row in rows])
    assert_sound(suite)
    kept = {value for case in suite.cases for value in suite.inputs(case)[0].tolist()}
    assert {2**31 - 1, -(2**31)} <= kept
    assert all(case.oracle == (SAME_AS_SOURCE,) for case in suite.cases)


def test_views_have_one_sample() -> None:
    program = capture(lambda x: x.t().exp(), (torch.ones(2, 3),))
    suite = carve(program, [(torch.full((2, 3), 10.0**power),) for power in range(-2, 2)])
    assert_sound(suite)
    assert ops(suite)["t"] <= 2 * carve_module.SAMPLES_OF_VIEWS


def test_strides_and_dtypes_survive() -> None:
    """Transposed, sliced, expanded, rank 0, empty, bool, integer, 16-bit, 8-bit and complex tensors."""

    def model(x: Tensor, mask: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return (
            x.t() + 1, x[::2, 1:] * 2, x[:1].expand(3, 4) - x[1:4], x.sum() * 3, x[:0] + 1, mask.logical_not(),
            index + index, x.half() * 2, x.bfloat16().exp(), torch.complex(x, x) * 2j,
            torch.complex(x, x).conj() + 1, x.to(torch.float8_e4m3fn).float() + 1, x.max(1)[1],
        )  # fmt: skip

    torch.manual_seed(0)
    args = (torch.randn(4, 4), torch.tensor([True, False]), torch.tensor([5, -3]))
    suite = carve(capture(model, args), [args])
    assert_sound(suite)
    strides = {entry.spec.stride for case in suite.cases for entry in case.load_graph().inputs}
    assert strides >= {(1, 4), (8, 1), (0, 1), (), (4, 1)}
    dtypes = {tensor.dtype for tensor in suite.tensors.values()}
    assert dtypes >= {torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn}


def test_an_operator_without_oracle_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> tuple[Tensor, ...]:
        raise NoOracle("not in float64")

    monkeypatch.setattr(carve_module, "oracle", none)
    program = capture(lambda x: x.exp(), (torch.ones(2),))
    (case,) = carve(program, [(torch.ones(2),)]).cases
    assert (case.oracle, case.no_oracle) == ((), "not in float64")


def test_random_and_stride_reading_operators_have_no_case() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + torch.rand_like(x), x.as_strided((2,), (1,)) * 2

    suite = carve(capture(model, (torch.ones(4),)), [(torch.ones(4),)])
    assert set(ops(suite)) == {"add", "mul"}


def test_parameters_are_stored_once_and_shared_not_copied() -> None:
    model = nn.Linear(64, 64, bias=False)
    program = capture(lambda x: model(model(x)), (torch.randn(1, 64),))
    suite = carve(program, [(torch.randn(1, 64),) for _ in range(3)])
    assert_sound(suite)
    large = [tensor for tensor in suite.tensors.values() if tensor.numel() == 64 * 64]
    assert [tensor.data_ptr() for tensor in large] == [model.weight.data_ptr()]
    assert suite.nbytes < 2 * 64 * 64 * 4


def test_activations_are_copies() -> None:
    program = capture(lambda x: x.exp(), (torch.ones(2),))
    given = torch.ones(2)
    suite = carve(program, [(given,)])
    given.zero_()
    assert_sound(suite)


def test_the_budget_holds_beyond_one_case_of_each_operator() -> None:
    program = capture(lambda x: x.exp() + x.sin(), (torch.ones(100),))
    inputs = [(torch.full((100,), 10.0**power),) for power in range(-4, 1)]
    whole = carve(program, inputs)
    least = carve(program, inputs, budget_bytes=0)
    assert_sound(least)
    assert {case.key for case in least.cases} == {case.key for case in whole.cases}
    assert len(least.cases) == 3 < len(whole.cases)
    refused = sum(entry.samples for entry in least.left_out if "size budget of 0 bytes" in entry.reason)
    assert refused == len(whole.cases) - 3
    some = carve(program, inputs, budget_bytes=least.nbytes + 2500)
    assert len(least.cases) < len(some.cases) < len(whole.cases)
    assert some.nbytes <= least.nbytes + 2500


def test_equal_content_is_paid_once() -> None:
    """Two operators on one tensor: its bytes count once."""
    program = capture(lambda x: (x.neg(), x.abs()), (torch.ones(100),))
    suite = carve(program, [(torch.ones(100),)], budget_bytes=10_000)
    assert suite.nbytes == 2 * 400  # x (which is also abs of x) and its negative
    assert_sound(suite)


def test_dump_bytes_counted_by_hand() -> None:
    """Per call: linear reads x (8 bytes), weight (24), bias (12), writes 12; relu reads 12, writes 12."""
    program = capture(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), (torch.ones(1, 2),))
    suite = carve(program, [(torch.ones(1, 2),), [(torch.ones(1, 2),), (torch.ones(1, 2),)]])
    assert suite.info.dump_bytes == 3 * (8 + 24 + 12 + 12 + 12 + 12)
    assert suite.info.dump_bytes_activations == 3 * (8 + 12 + 12 + 12)


def test_where_a_suite_comes_from() -> None:
    program = tower(1)
    info = carve(program, [(torch.randn(2, 4),)]).info
    assert (info.program, info.graph_hash, info.content_hash) == (
        "Tower", program.graph_hash, program.content_hash
    )  # fmt: skip
    assert info.torch_version == torch.__version__
    assert min(info.eager_seconds, info.carve_seconds, info.finish_seconds) > 0


def test_the_model_itself_is_timed_and_progress_told() -> None:
    seen: list[tuple[object, ...]] = []
    told: list[str] = []

    def model(x: Tensor) -> Tensor:
        return x.exp()

    program = capture(model, (torch.ones(2),))
    carve(
        program,
        [(torch.ones(2),)],
        eager=lambda *args: seen.append(args),
        progress=lambda what, done, total: told.append(f"{what} {done}/{total}"),
    )
    assert len(seen) == 1
    assert told == ["carving 0/1", "carving 1/1", "oracle 0/1", "oracle 1/1"]


@pytest.mark.parametrize(
    "inputs",
    [[], [(torch.ones(3, 4),)], [(torch.ones(2, 4).double(),)], [()], [(torch.ones(2, 4), 1)], torch.ones(2, 4)],
)
def test_inputs_that_do_not_fit(inputs: list[object]) -> None:
    with pytest.raises(UsageError):
        carve(tower(1), inputs)


def test_a_misfit_in_the_last_set_is_found_before_anything_runs() -> None:
    told: list[str] = []
    good = (torch.ones(2, 4),)
    with pytest.raises(UsageError):
        carve(tower(1), [good, [good, (torch.ones(1, 4),)]], progress=lambda what, done, total: told.append(what))
    assert told == []
