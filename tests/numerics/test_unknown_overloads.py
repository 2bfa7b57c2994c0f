"""Which ATen overloads no tolerance class of its own covers. Run as a script, it prints them.

Left out: random operators, gradients, optimisers, quantised, sparse and nested tensors, and one vendor's own operators.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - an overload's schema
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tapestry.numerics import flatten_result, judge, oracle
from tapestry.numerics.arguments import names, operator_name
from tapestry.numerics.facts import CallFacts
from tapestry.numerics.tolerance import UNKNOWN, UNKNOWN_POINTWISE, class_of

aten = torch.ops.aten

#: Integers, bool or memory that nobody wrote: judged exactly or not at all, whatever the class.
_NOT_FLOATING = names(
    """all any argmax argmin argsort argwhere bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor count_nonzero eq ge gt le lt ne gcd lcm greater greater_equal less less_equal
    not_equal hash_tensor isclose isfinite isin isneginf isposinf isreal logical_and logical_or logical_xor
    nonzero_numpy nonzero_static signbit int_repr _cast_Byte _cast_Char _cast_Int _cast_Long _cast_Short _is_all_true
    _is_any_true _shape_as_tensor _dim_arange empty_like new_empty new_empty_strided resize _int_mm
    _new_zeros_with_same_feature_meta"""
)

_ELSEWHERE = (
    "backward", "foreach", "fused_adam", "fused_sgd", "fused_adagrad", "quantized", "fake_quant", "qint", "q_", "int8",
    "int4", "sparse", "_nested", "nested", "cudnn", "miopen", "mps", "mkldnn", "mkl", "xnnpack", "cuda", "_cslt",
    "thnn", "vulkan", "_scaled_dot_product_efficient", "fbgemm", "rowwise_prune", "dropout", "_scaled_",
    "_jagged", "_padded", "sym_", "_test", "coalesce", "crow", "ccol", "_amp_", "_thnn_differentiable", "dynamic",
    "_flash_attention", "_efficient_attention", "_cudnn", "_masked_scale", "quantize", "_functional_", "per_channel",
    "_choose_qparams", "_saturate_weight", "_convert_weight", "_coo", "_csr", "_bsr", "_bsc", "_csc", "to_mkldnn",
    "ctc_loss.Tensor_out", "standard_gamma", "_dirichlet", "_sample", "_histogramdd", "_fw_primal", "_make_dual",
    "_philox", "_sobol", "_unpack_dual", "_foobar", "batch_dim", "_triton", "_dyn_quant", "_wrapped_linear",
    "jvp", "smm", "sspadd", "_spsolve", "_spdiags", "batch_norm_elemt",
    "batch_norm_gather", "batch_norm_stats", "batch_norm_update",
)  # fmt: skip


def _overloads() -> Iterator[torch._ops.OpOverload]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and not any(word in rest for word in _ELSEWHERE):
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def _gives_tensors(target: torch._ops.OpOverload) -> bool:
    schema = target._schema
    written = any(argument.is_out for argument in schema.arguments) or "Dimname" in str(schema)
    takes = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return takes and not written and any("Tensor" in str(entry.type) for entry in schema.returns)


def unknown_overloads() -> list[str]:
    """Names of the overloads that fall to the class that is scaled by the source."""
    found: list[str] = []
    for target in _overloads():
        if not _gives_tensors(target) or torch.Tag.nondeterministic_seeded in target.tags:
            continue
        if class_of(CallFacts(target, (), {})) in (UNKNOWN, UNKNOWN_POINTWISE):
            if operator_name(target) in _NOT_FLOATING or operator_name(target).startswith("__"):
                continue
            found.append(str(target).removeprefix("aten."))
    return found


def test_few_operators_are_unknown() -> None:
    unknown = {name.partition(".")[0].rstrip("_") for name in unknown_overloads()}
    assert not unknown & {"linear", "softmax", "layer_norm", "conv2d", "cdist", "fft_fft", "lstm", "cross_entropy_loss"}
    assert len(unknown) <= 35, sorted(unknown)


X = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) + 0.5
SYMMETRIC = X + X.t()
CALLS: dict[str, tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]] = {
    "gradient": (aten.gradient.scalarint, (X,), {"spacing": 0.3}),
    "istft": (aten.istft.default, (torch.stft(X.flatten(), 8, window=torch.hann_window(8), return_complex=True), 8),
              {"window": torch.hann_window(8)}),
    "polygamma": (aten.polygamma.default, (2, X), {}),
    "hermite": (aten.special_hermite_polynomial_h.n_scalar, (X, 3), {}),
    "ldl_factor": (aten.linalg_ldl_factor_ex.default, (SYMMETRIC,), {}),
    "qkv": (aten._transform_bias_rescale_qkv.default, (X.reshape(1, 3, 12), X.flatten()[:12], 2), {}),
    "masked softmax": (aten._masked_softmax.default, (X[None, None], torch.zeros(6, 6, dtype=torch.bool), 3, 0), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("fault", ["a thousandth", "bfloat16", "none"])
def test_what_is_unknown_is_judged_all_the_same(name: str, fault: str) -> None:
    target, args, kwargs = CALLS[name]
    source, want = flatten_result(target(*args, **kwargs)), oracle(target, args, kwargs)
    assert source[0] is not None
    got = source[0].clone().contiguous()
    if fault == "bfloat16":
        got = got.bfloat16().float()
    elif fault == "a thousandth":
        got.view(-1)[int(got.abs().flatten().argmax())] *= 1 + 1e-3
    outcome = judge(target, args, kwargs, (got, *source[1:]), source, want)
    assert outcome.judged_by.startswith("unknown")
    assert outcome.verdict == ("pass" if fault == "none" else "fail")


if __name__ == "__main__":
    print("\n".join(unknown_overloads()))
