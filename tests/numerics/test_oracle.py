"""The oracle: what is computed in float64, what stays as it is, and what has no oracle."""

from __future__ import annotations

# ruff: noqa: SLF001 - names of ATen operators begin with an underscore
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.numerics import NoOracle, is_random, oracle, oracle_args, to_oracle_dtype

aten = torch.ops.aten
F32, F64 = torch.float32, torch.float64


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, tapestry.numerics as n; n.Verdict.PASS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_floats_are_computed_in_float64() -> None:
    x = torch.tensor([0.1, 3.0])
    (result,) = oracle(aten.exp.default, (x,))
    assert result is not None
    assert result.dtype == F64
    assert torch.equal(result, x.double().exp())


def test_dtype_attributes_become_float64() -> None:
    (total,) = oracle(aten.sum.default, (torch.ones(3, dtype=torch.float16),), {"dtype": F32})
    (filled,) = oracle(aten.full.default, ([2], 0.1), {"dtype": torch.float16})
    assert total is not None
    assert filled is not None
    assert total.dtype == filled.dtype == F64
    assert filled[0] == 0.1


def test_a_cast_to_half_rounds_and_a_cast_to_single_does_not() -> None:
    x = torch.tensor([1 / 3], dtype=F64)
    (half,) = oracle(aten._to_copy.default, (x,), {"dtype": torch.float16})
    (single,) = oracle(aten._to_copy.default, (x,), {"dtype": F32})
    assert half is not None
    assert single is not None
    assert half.dtype == single.dtype == F64
    assert half[0] == x.half().double()[0] != x[0]
    assert single[0] == x[0]


def test_integers_keep_their_dtype_and_wrap_around() -> None:
    big = torch.tensor([2**31 - 1], dtype=torch.int32)
    (result,) = oracle(aten.add.Tensor, (big, big))
    assert result is not None
    assert result.dtype == torch.int32
    assert int(result[0]) == -2
    (wide,) = oracle(aten.mul.Tensor, (torch.tensor([65536]), torch.tensor([32768])))
    assert wide is not None
    assert int(wide[0]) == 2**31


def test_integers_promoted_to_the_default_dtype_are_promoted_to_float64() -> None:
    (result,) = oracle(aten.div.Tensor, (torch.tensor([1]), torch.tensor([3])))
    assert result is not None
    assert result.dtype == F64
    assert float(result[0]) == 1 / 3
    assert torch.get_default_dtype() == F32


@pytest.mark.parametrize("call", [(aten.add.Tensor, 0.1), (aten.mul.Scalar, 0.1), (aten.sub.Tensor, 0.1)])
def test_a_scalar_is_rounded_as_the_operator_rounds_it(call: tuple[torch._ops.OpOverload, float]) -> None:
    target, scalar = call
    x = torch.tensor([0.5])
    (result,) = oracle(target, (x, scalar))
    (expected,) = oracle(target, (x.double(), float(torch.tensor(scalar))))
    assert result is not None
    assert expected is not None
    assert torch.equal(result, expected)


def test_a_default_scalar_is_rounded_too() -> None:
    (result,) = oracle(aten.leaky_relu.default, (torch.tensor([-1.0]),))
    assert result is not None
    assert float(result[0]) == -float(torch.tensor(0.01))


def test_comparison_with_a_scalar_is_the_declared_formats() -> None:
    (result,) = oracle(aten.gt.Scalar, (torch.tensor([0.1]), 0.1))
    assert result is not None
    assert not bool(result[0])


def test_rms_norm_without_eps_takes_the_inputs_epsilon() -> None:
    x = torch.full((1, 4), 1e-5)
    (result,) = oracle(aten.rms_norm.default, (x, [4]))
    assert result is not None
    assert torch.allclose(result, torch.rms_norm(x, [4]).double(), rtol=1e-6)


def test_narrow_complex_becomes_complex128() -> None:
    (result,) = oracle(aten.mul.Tensor, (torch.tensor([1 + 2j]), torch.tensor([3 - 1j])))
    assert result is not None
    assert result.dtype == torch.complex128


def test_nan_and_infinities_pass_through() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf])
    (result,) = oracle(aten.relu.default, (x,))
    assert result is not None
    assert result.isnan().tolist() == [True, False, False]
    assert result[1:].tolist() == [torch.inf, 0.0]


def test_integer_product_reference_is_exact() -> None:
    left = torch.full((17, 64), 127, dtype=torch.int8)
    right = torch.full((64, 8), -128, dtype=torch.int8)
    (result,) = oracle(aten._int_mm.default, (left, right))
    assert result is not None
    assert result.dtype == torch.int32
    assert bool((result == 64 * 127 * -128).all())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated, and still exported by models
def test_quantisation_has_a_written_reference() -> None:
    x = torch.tensor([0.26, -1.0, 100.0])
    args = (x, 0.1, 3, torch.quint8)
    (levels,) = oracle(aten.quantize_per_tensor.default, args)
    assert levels is not None
    assert levels.tolist() == torch.quantize_per_tensor(*args).int_repr().tolist()


def test_random_operators_have_no_oracle() -> None:
    with pytest.raises(NoOracle, match="random"):
        oracle(aten.bernoulli.default, (torch.rand(3),))
    with pytest.raises(NoOracle, match="nothing wrote"):
        oracle(aten.empty.memory_format, ([2],))


def test_dropout_that_drops_nothing_is_not_random() -> None:
    query = torch.randn(1, 1, 2, 4)
    assert is_random(aten.dropout.default, (query, 0.5, True), {})
    assert not is_random(aten.dropout.default, (query, 0.5, False), {})
    assert not is_random(aten.scaled_dot_product_attention.default, (query, query, query), {})
    assert is_random(aten.scaled_dot_product_attention.default, (query, query, query, None, 0.1), {})


def test_operators_without_a_float64_kernel_say_so() -> None:
    with pytest.raises(NoOracle, match="mkldnn_linear does not run in float64"):
        oracle(aten.mkldnn_linear.default, (torch.ones(2, 2), torch.ones(2, 2)))


def test_a_mutating_operator_leaves_its_arguments_alone() -> None:
    x = torch.tensor([-1.0])
    d = torch.tensor([-1.0], dtype=F64)
    oracle(aten.relu_.default, (x,))
    oracle(aten.relu_.default, (d,))
    assert float(x) == float(d) == -1.0


def test_as_strided_reads_the_storage_behind_the_tensor() -> None:
    base = torch.arange(6.0)
    (result,) = oracle(aten.as_strided.default, (base[2:], [2], [1], 0))
    assert result is not None
    assert result.tolist() == [0.0, 1.0]


def test_values_that_flow_in_float64_keep_the_declared_formats_meaning() -> None:
    x = torch.tensor([0.1, torch.inf], dtype=F64)
    (compared,) = oracle(aten.gt.Scalar, (x.float().double(), 0.1), declared=F32)
    (replaced,) = oracle(aten.nan_to_num.default, (x,), declared=F32)
    (normed,) = oracle(aten.rms_norm.default, (x[:1] * 1e-4, [1]), declared=F32)
    (scaled,) = oracle(aten.mul.Tensor, (x, 0.1), declared=F32)
    assert compared is not None
    assert replaced is not None
    assert normed is not None
    assert scaled is not None
    assert not bool(compared[0])
    assert float(replaced[1]) == torch.finfo(F32).max
    assert float(normed[0]) == pytest.approx(1e-5 / (1e-10 + 2.0**-23) ** 0.5)
    assert float(scaled[0]) == 0.1 * float(torch.tensor(0.1))


def test_a_call_is_repeated_on_fresh_arguments_when_the_default_dtype_matters() -> None:
    total = torch.tensor([1.0, 2.0])
    (result,) = oracle(aten.add_.Tensor, (total, torch.tensor([1, 1])))
    assert result is not None
    assert result.tolist() == [2.0, 3.0]
    assert total.tolist() == [1.0, 2.0]


def test_float64_arguments_pass_through() -> None:
    x = torch.ones(2, dtype=F64)
    (wide,), _ = oracle_args(aten.exp.default, (x,), {})
    assert wide.data_ptr() == x.data_ptr()  # type: ignore[attr-defined]


@settings(derandomize=True)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([torch.float32, torch.bfloat16]))
def test_strides_are_preserved(rows: int, columns: int, step: int, dtype: torch.dtype) -> None:
    base = torch.arange(rows * columns * step, dtype=F32).to(dtype).view(rows, columns * step)
    for view in (base[:, ::step], base.t(), base[:, :1].expand(rows, 3), base[:, ::step].t()):
        wide = to_oracle_dtype(view)
        assert wide.dtype == F64
        assert wide.stride() == view.stride() or view.is_contiguous()
        assert torch.equal(wide, view.double())


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.div.Tensor, (torch.tensor([1, 2, 3]), torch.tensor([3, 7, 9]))),
        (aten.sqrt.default, (torch.tensor([2, 3]),)),
        (aten.exp.default, (torch.tensor([True, False]),)),
        (aten.add.Tensor, (torch.tensor([2, 3]), 0.1)),
        (aten.atan2.default, (torch.tensor([2, 3]), torch.tensor([5, 7]))),
        (aten.full.default, ([2], 0.1)),
        (aten.arange.start_step, (0.0, 1.0, 0.3)),
        (aten.hann_window.default, (7,)),
        (aten.logsumexp.default, (torch.tensor([[2, 3]]), [1])),
    ],
)
def test_promotion_to_the_default_dtype_leaves_the_default_alone(
    target: torch._ops.OpOverload, args: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(dtype: torch.dtype) -> None:
        raise AssertionError(f"the default dtype of the process became {dtype}")

    expected = target(*args)
    monkeypatch.setattr(torch, "set_default_dtype", refuse)
    (result,) = oracle(target, args)
    assert result is not None
    assert result.dtype == torch.float64
    torch.testing.assert_close(result.float(), expected)
    assert not torch.equal(result, expected.double())


def test_where_no_argument_can_ask_for_double_the_default_is_set_and_restored() -> None:
    (result,) = oracle(aten.where.Scalar, (torch.tensor([True, False]), 0.1, 0.3))
    assert result is not None
    assert result.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
