"""Which dimensions of a tensor act together in an operator: its rows. Not here: what is put into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import bind, names, operator_name
from tapestry.numerics.elementwise import known
from tapestry.numerics.exact import is_exact
from tapestry.numerics.facts import CallFacts
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.meaning import Role, TensorMeaning

#: Exact operators that compare elements with each other; the other exact ones copy each by itself.
_CHOOSES = names("""
    max min amax amin aminmax argmax argmin sort msort argsort topk kthvalue median nanmedian mode cummax cummin unique
    _unique2 unique_consecutive unique_dim masked_select nonzero""")
_CHOOSES_IN_WINDOWS = ("max_pool", "max_unpool")
#: Elementwise by meaning, without the tag.
_ELEMENTWISE = names("""
    hardswish log_sigmoid log_sigmoid_forward isclose fill special_logit special_xlogy special_xlog1py special_expit
    special_sinc special_round special_i0 special_i1 bernoulli type_as alias to _to_copy
    quantize_per_tensor dequantize quantized_decomposed::quantize_per_tensor""")
_PRODUCTS = names("mm matmul bmm addmm baddbmm addbmm mv addmv dot vdot inner _int_mm _grouped_mm")
#: The factor on the right, whose rows run along its second last dimension.
_RIGHT = names("other mat2 batch2 tensor2")
#: The dimensions of a sample from the second on.
_PER_SAMPLE = names("""
    conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
    group_norm native_group_norm""")
#: The dimensions behind the channels.
_PER_CHANNEL = names("instance_norm pixel_shuffle pixel_unshuffle grid_sampler grid_sampler_2d grid_sampler_3d")
#: One channel over all samples.
_OVER_SAMPLES = ("batch_norm", "native_batch_norm")


def is_elementwise(call: OpCall) -> bool:
    """Whether each element of the result comes from one element of every operand: arithmetic, choices, copies."""
    if torch.Tag.pointwise in call.target.tags:
        return True
    name = operator_name(call.target)
    if name in _ELEMENTWISE:
        return True
    facts = CallFacts(call.target, call.args, call.kwargs)
    if is_exact(facts):
        return name not in _CHOOSES and not any(part in name for part in _CHOOSES_IN_WINDOWS)
    return known(facts)


def row_dims(call: OpCall, meaning: TensorMeaning, tensor: Tensor) -> tuple[int, ...]:
    """The dimensions of one tensor that make a row, ascending; all of them where elements act together everywhere."""
    rank = tensor.dim()
    every = tuple(range(rank))
    if rank <= 1:
        return every
    bound = bind(call.target, call.args, call.kwargs)
    dims = _by_operator(call.target, meaning, rank)
    if dims is None:
        dims = _by_attribute(bound, rank)
    return tuple(sorted({dim % rank for dim in dims if -rank <= dim < rank})) or every


def _by_operator(target: OpOverload, meaning: TensorMeaning, rank: int) -> tuple[int, ...] | None:
    name = operator_name(target)
    if name in _PRODUCTS:
        return (-2,) if meaning.argument in _RIGHT else (-1,)
    if "attention" in name:
        return (-2,) if meaning.argument == "value" else (-1,)
    if name in _PER_SAMPLE or (meaning.role == Role.WEIGHT and "conv" in name):
        return tuple(range(1, rank))
    if name in _PER_CHANNEL or name.startswith("upsample") or name.startswith("_upsample"):
        return tuple(range(2, rank)) or None
    if any(part in name for part in _OVER_SAMPLES):
        return tuple(dim for dim in range(rank) if dim != 1)
    if "pool" in name or "_pad" in name:
        return tuple(range(-min(_spatial(name), rank), 0))
    return None


def _spatial(name: str) -> int:
    return 1 if "1d" in name else 3 if "3d" in name else 2


def _by_attribute(bound: dict[str, object], rank: int) -> tuple[int, ...]:
    shape = bound.get("normalized_shape")
    if isinstance(shape, list | tuple):
        return tuple(range(-min(len(cast("Sequence[int]", shape)), rank), 0))
    if "dim" not in bound:
        return tuple(range(rank)) if set(bound) <= {"self", "dtype"} else (-1,)
    dim = bound["dim"]
    if isinstance(dim, int):
        return (dim,)
    if isinstance(dim, list | tuple):
        return tuple(entry for entry in cast("Sequence[object]", dim) if isinstance(entry, int))
    return tuple(range(rank))
