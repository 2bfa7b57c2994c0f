"""Where the reference itself is a convention, so that a platform may differ: positions left out of the comparison."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.arguments import names
from tapestry.numerics.facts import CallFacts

_CASTS = {"_to_copy": "self", "to": "self", "type_as": "self", "copy": "src", "_cast_Int": "self", "_cast_Long": "self"}
_QUANTISE = {"quantize_per_tensor": "self", "quantized_decomposed::quantize_per_tensor": "input"}
#: Three float32 roundings: of 1 / scale, of the product, of the sum with the zero point.
_TIE_UNITS = 3 * 2.0**-24
_SOFTMAX = names("softmax _softmax special_softmax log_softmax _log_softmax special_log_softmax softmin")
_ATTENTION = names("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu")
_DIVISION = names("div floor_divide remainder fmod divide")
_SHIFTS = names("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __ilshift__ __irshift__")
_NORMS = {
    "_native_batch_norm_legit_no_training": ("weight", "running_mean", "running_var"),
    "_batch_norm_impl_index": ("weight", "running_mean", "running_var"),
    "native_batch_norm": ("weight", "running_mean", "running_var"),
    "batch_norm": ("weight", "running_mean", "running_var"),
    "layer_norm": ("weight",),
    "native_layer_norm": ("weight",),
    "group_norm": ("weight",),
    "native_group_norm": ("weight",),
    "instance_norm": ("weight",),
}  # fmt: skip
#: Writes by index, with the argument that holds what is written.
_WRITES = {"scatter": "src", "index_put": "values", "_unsafe_index_put": "values", "_index_put_impl": "values",
           "index_copy": "source", "put": "source"}  # fmt: skip

#: Linear and cubic resizing and sampling.
_INTERPOLATIONS = names("""
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa grid_sampler grid_sampler_2d grid_sampler_3d""")

#: Results that no specification fixes, by index: signs and phases of vectors, order of eigenvalues, bookkeeping.
_FREE_RESULTS: dict[str, tuple[tuple[int, ...], str]] = {
    "_linalg_eigh": ((1,), "eigenvectors are defined up to a factor"),
    "linalg_eigh": ((1,), "eigenvectors are defined up to a factor"),
    "linalg_eig": ((0, 1), "eigenvalues have no order"),
    "_linalg_eigvals": ((0,), "eigenvalues have no order"),
    "linalg_eigvals": ((0,), "eigenvalues have no order"),
    "_linalg_svd": ((0, 2), "singular vectors are defined up to a factor"),
    "linalg_svd": ((0, 2), "singular vectors are defined up to a factor"),
    "svd": ((0, 2), "singular vectors are defined up to a factor"),
    "qr": ((0, 1), "the factors are defined up to signs"),
    "linalg_qr": ((0, 1), "the factors are defined up to signs"),
    "geqrf": ((0, 1), "the factors are defined up to signs"),
    "embedding_bag": ((1, 2, 3), "bookkeeping for the gradient"),
    "_weight_norm_interface": ((1,), "bookkeeping for the gradient"),
    "_embedding_bag": ((1, 2, 3), "bookkeeping for the gradient"),
    "_embedding_bag_forward_only": ((1, 2, 3), "bookkeeping for the gradient"),
    "_ctc_loss": ((1,), "bookkeeping for the gradient"),
    "log_sigmoid_forward": ((1,), "bookkeeping for the gradient"),
}


def is_free(facts: CallFacts, index: int) -> str:
    """Why result ``index`` as a whole is no specification's matter; empty for a result that is."""
    indices, reason = _FREE_RESULTS.get(facts.name, ((), ""))
    return reason if index in indices else ""


def undefined_positions(facts: CallFacts, declared: torch.dtype) -> tuple[Tensor, str] | None:
    """A mask (bool, broadcastable to the result) of what has no right answer, with the reason; None if all has."""
    if facts.name in _CASTS:
        return _cast_to_integer(facts, declared)
    if facts.name in _SOFTMAX:
        return _masked_rows(facts)
    if facts.name in _ATTENTION:
        return _masked_queries(facts)
    if facts.name in _DIVISION and not declared.is_floating_point:
        return _found(_operand(facts, "other") == 0, "an integer is divided by zero")
    if facts.name in _QUANTISE:
        return _near_ties(facts)
    if facts.name in _NORMS:
        return _infinite_parameters(facts)
    if facts.name in _INTERPOLATIONS:
        return _beside_infinities(facts)
    if facts.name in _WRITES:
        return _written_twice(facts)
    if facts.name in _SHIFTS:
        amount = _operand(facts, "other")
        return _found((amount < 0) | (amount >= declared.itemsize * 8), "a shift is negative or as wide as the type")
    return None


def _found(mask: Tensor, reason: str) -> tuple[Tensor, str] | None:
    return (mask, reason) if bool(mask.any()) else None


def _operand(facts: CallFacts, name: str) -> Tensor:
    return torch.as_tensor(facts.bound[name])


def _cast_to_integer(facts: CallFacts, declared: torch.dtype) -> tuple[Tensor, str] | None:
    value = facts.tensor(_CASTS[facts.name])
    if value is None or not value.is_floating_point() or declared.is_floating_point or declared.is_complex:
        return None
    if declared == torch.bool:
        return None
    limits, whole = torch.iinfo(declared), value.detach().to(torch.float64).trunc()
    # the upper limit of int64 is not a float64: below 2^63 exactly
    outside = ~((whole >= float(limits.min)) & (whole < float(limits.max) + (1.0 if declared.itemsize < 8 else 0.0)))
    return _found(outside, f"NaN, infinities and values beyond {declared} have no integer")


def _near_ties(facts: CallFacts) -> tuple[Tensor, str] | None:
    """Eager multiplies by 1 / scale in float32, and operators add the zero point before or after rounding."""
    value, scale = facts.tensor(_QUANTISE[facts.name]), facts.bound.get("scale")
    if value is None or scale is None:
        return None
    level = value.detach().to(torch.float64) / torch.as_tensor(scale, dtype=torch.float64)
    near = ((level - level.floor()) - 0.5).abs() <= _TIE_UNITS * level.abs()
    return _found(near | ~torch.isfinite(level), "a quantisation on a tie may round either way")


def _infinite_parameters(facts: CallFacts) -> tuple[Tensor, str] | None:
    """(x − m) r w + b and x (r w) + (b − m r w) give an infinity here and a NaN there."""
    value = facts.tensor("input")
    found: Tensor | None = None
    for name in _NORMS[facts.name]:
        parameter = facts.tensor(name)
        if value is None or parameter is None or not bool(torch.isinf(parameter).any()):
            continue
        shape = [1, -1] + [1] * (value.dim() - 2) if "layer" not in facts.name else list(parameter.shape)
        infinite = torch.isinf(parameter).reshape(shape)
        found = infinite if found is None else found | infinite
    return None if found is None else (found, "with an infinite parameter it depends on the order of the steps")


def _beside_infinities(facts: CallFacts) -> tuple[Tensor, str] | None:
    """Between a and b, (1 - w) a + w b and a + w (b - a) give an infinity here and a NaN there."""
    value = facts.tensor("input") if facts.tensor("self") is None else facts.tensor("self")
    if value is None or not value.is_floating_point() or not bool(torch.isinf(value).any()):
        return None
    (exact,) = facts.run_wide(lambda tensor: tensor, lambda number: number)
    if exact is None:
        return None
    return _found(~torch.isfinite(exact), "an interpolation beside an infinity depends on the order of the steps")


def _written_twice(facts: CallFacts) -> tuple[Tensor, str] | None:
    """Where several elements are written to one place, and nothing says which is the last."""
    written, target = facts.tensor(_WRITES[facts.name]), facts.tensor("self")
    if facts.bound.get("accumulate") or facts.bound.get("reduce") or written is None or target is None:
        return None
    if written.numel() <= 1 or not target.dim():
        return None
    none = torch.zeros(target.shape, dtype=torch.int64)
    index, dim = facts.tensor("index"), facts.bound.get("dim")
    if facts.name == "scatter" and index is not None:
        times = none.scatter_add(cast(int, dim), index, torch.ones_like(index, dtype=torch.int64))
    elif facts.name == "index_copy" and index is not None:
        times = none.index_add(cast(int, dim), index.reshape(-1), torch.ones_like(written, dtype=torch.int64))
    elif facts.name == "put" and index is not None:
        times = none.put(index, torch.ones_like(index), accumulate=True)
    else:
        times = torch.ops.aten.index_put(none, facts.bound["indices"], torch.ones((), dtype=torch.int64), True)
    return _found(times > 1, "several elements are written to one place")


def _masked_rows(facts: CallFacts) -> tuple[Tensor, str] | None:
    value = facts.tensor("self")
    if value is None or value.dim() == 0 or value.numel() == 0:
        return None
    dim = int(cast(int, facts.bound.get("dim", -1)))
    rows = (value == -torch.inf).all(dim, keepdim=True)
    return _found(rows, "a softmax over nothing but -inf is a convention")


def _masked_queries(facts: CallFacts) -> tuple[Tensor, str] | None:
    mask = facts.tensor("attn_mask")
    if mask is None or mask.numel() == 0:
        return None
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    if facts.bound.get("is_causal"):
        hidden = hidden | ~torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return _found(hidden.all(-1, keepdim=True), "attention over keys that are all masked is a convention")
