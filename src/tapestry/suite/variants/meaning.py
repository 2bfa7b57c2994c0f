"""What the arguments of an ATen call mean, read from their names, their types and the tensors beside them.

One table of names serves all operators: ``index`` is an index wherever it stands, ``dim`` a dimension. An operator is
named here only where its arguments mean something that their names don't say. Not here: which values or shapes
follow from a meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import prod
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics.arguments import argument_types, bind, names, operator_name
from tapestry.suite.variants.call import OpCall, tensors_in


class Role(StrEnum):
    """What a tensor is to its operator.

    ``INDEX`` points at elements, ``MASK`` says yes or no, ``ADDED_MASK`` is added to scores. ``PROBABILITY`` lies in
    [0, 1], ``VARIANCE`` is not negative, ``SORTED`` ascends along its last dimension. ``LENGTHS`` decide shapes or
    must fit each other, ``FIXED`` are products of other operators (pivots, packed weights): neither can be chosen
    freely.
    """

    DATA = "data"
    WEIGHT = "weight"
    BIAS = "bias"
    INDEX = "index"
    MASK = "mask"
    ADDED_MASK = "added mask"
    MEAN = "mean"
    VARIANCE = "variance"
    PROBABILITY = "probability"
    SORTED = "sorted"
    LENGTHS = "lengths"
    FIXED = "fixed"


class AttributeRole(StrEnum):
    """What an argument that is no tensor is to its operator.

    ``DIM``, ``DIMS``: dimensions, negative from the end. ``SHAPE``: sizes of the result or of a part. ``WINDOW``:
    kernel sizes, ``STEP``: strides and dilations, ``PADDING``, ``GROUPS``, ``COUNT``: how many or which. ``POSITION``:
    where in a dimension, ``ORDER``: p of a norm, ``EPSILON``, ``FACTOR``: a number that takes part, ``BOUND``: a limit,
    ``PROBABILITY``, ``FLAG``, ``MODE``: a choice by name or number, ``DTYPE``, ``PLACEMENT``: device, layout, memory
    format, ``OTHER``.
    """

    DIM = "dim"
    DIMS = "dims"
    SHAPE = "shape"
    WINDOW = "window"
    STEP = "step"
    PADDING = "padding"
    GROUPS = "groups"
    COUNT = "count"
    POSITION = "position"
    ORDER = "order"
    EPSILON = "epsilon"
    FACTOR = "factor"
    BOUND = "bound"
    PROBABILITY = "probability"
    FLAG = "flag"
    MODE = "mode"
    DTYPE = "dtype"
    PLACEMENT = "placement"
    OTHER = "other"


@dataclass(frozen=True)
class TensorMeaning:
    """One tensor of a call. ``place`` counts the tensors of the call, ``entry`` those in one list argument (or None).

    For an index ``low`` and ``high`` are the least and largest legal values, and ``distinct`` says that repeated
    places would be written in no defined order, ``reaches_high`` that the largest index in the call decides a shape.
    ``constant``: the same in every run of the program.
    """

    place: int
    argument: str
    role: Role
    entry: int | None = None
    low: int = 0
    high: int = -1
    distinct: bool = False
    reaches_high: bool = False
    constant: bool = False


@dataclass(frozen=True)
class Attribute:
    """One argument without a tensor. ``given`` is False where the call leaves it to the schema; then ``value`` is the
    default. ``position`` counts the schema's arguments.
    """

    name: str
    role: AttributeRole
    type: str
    position: int
    value: object
    given: bool


_TENSOR_ROLES: dict[str, Role] = {
    name: role
    for role, words in {
        Role.WEIGHT: "weight weights params qkv_weight proj_weight pos_weight per_sample_weights",
        Role.BIAS: "bias qkv_bias proj_bias input_bias hidden_bias",
        Role.INDEX: "index indices",
        Role.MASK: "condition mask",
        Role.ADDED_MASK: "attn_mask attn_bias",
        Role.MEAN: "running_mean",
        Role.VARIANCE: "running_var std",
        Role.PROBABILITY: "p",
        Role.SORTED: "sorted_sequence boundaries",
        Role.LENGTHS: """repeats lengths offsets offs batch_sizes input_lengths target_lengths nested_size
            nested_strides cum_seq_q cum_seq_k cu_seqlens_q cu_seqlens_k""",
        Role.FIXED: "pivots LU_pivots LU_data LU LD tau sorter generator zero_point scale dropout_state random_samples",
    }.items()
    for name in words.split()
}
#: Operators whose arguments mean something else than their names say.
_SPECIAL: dict[tuple[str, str], Role] = {
    ("one_hot", "self"): Role.INDEX,
    ("bincount", "self"): Role.INDEX,
    ("nll_loss", "target"): Role.INDEX,
    ("nll_loss_nd", "target"): Role.INDEX,
    ("nll_loss_forward", "target"): Role.INDEX,
    ("nll_loss2d", "target"): Role.INDEX,
    ("nll_loss2d_forward", "target"): Role.INDEX,
    ("cross_entropy_loss", "target"): Role.INDEX,
    ("multi_margin_loss", "target"): Role.INDEX,
    ("multilabel_margin_loss", "target"): Role.FIXED,
    ("ctc_loss", "targets"): Role.FIXED,
    ("_ctc_loss", "targets"): Role.FIXED,
    ("binary_cross_entropy", "self"): Role.PROBABILITY,
    ("binary_cross_entropy", "target"): Role.PROBABILITY,
    ("binary_cross_entropy_with_logits", "target"): Role.PROBABILITY,
    ("bernoulli", "self"): Role.PROBABILITY,
    ("multinomial", "self"): Role.PROBABILITY,
    ("segment_reduce", "indices"): Role.LENGTHS,
    ("polar", "abs"): Role.VARIANCE,
}
#: Writes by index whose order among equal places is not defined, unless they add.
_WRITES = names("scatter index_put _unsafe_index_put _index_put_impl index_copy put")

_ATTRIBUTE_ROLES: dict[str, AttributeRole] = {
    name: role
    for role, words in {
        AttributeRole.DIM: "dim dim0 dim1 dim2 axis axis0 axis1 dimension start_dim end_dim ch_axis",
        AttributeRole.DIMS: "dims dims_self dims_other source destination",
        AttributeRole.SHAPE: """size sizes shape output_size input_size normalized_shape split_sizes split_size repeats
            s n sizes_or_sections""",
        AttributeRole.WINDOW: "kernel_size",
        AttributeRole.STEP: "stride dilation step strides",
        AttributeRole.PADDING: "padding pad output_padding",
        AttributeRole.GROUPS: "groups group num_groups",
        AttributeRole.COUNT: """k chunks sections num_classes minlength bins num_samples steps upscale_factor num_chunks
            downscale_factor divisor_override decimals correction hidden_size num_layers fill_value_count N C HxW""",
        AttributeRole.POSITION: """start end length index diagonal offset storage_offset shifts padding_idx ignore_index
            low high row col""",
        AttributeRole.ORDER: "p ord",
        AttributeRole.EPSILON: "eps epsilon",
        AttributeRole.FACTOR: """alpha beta value other self exponent scale negative_slope fill_value weight nan posinf
            neginf lambd margin delta momentum scale_factors scales scales_h scales_w scales_d softcap test_element
            element threshold base""",
        AttributeRole.BOUND: "min max min_val max_val lower upper",
        AttributeRole.PROBABILITY: "dropout_p dropout",
        AttributeRole.MODE: """reduction reduce mode approximate rounding_mode norm interpolation_mode padding_mode
            normalization side pad_mode indexing driver compute_mode equation""",
        AttributeRole.DTYPE: "dtype out_dtype",
        AttributeRole.PLACEMENT: "device layout pin_memory memory_format non_blocking generator copy implicit",
    }.items()
    for name in words.split()
}
_LIST_OF_DIMS = frozenset({"List[int]", "Optional[List[int]]"})


@cache
def attribute_role(name: str, kind: str, operator: str = "") -> AttributeRole:
    """The role of an argument by its name and JIT type, such as ``("dim", "Optional[int]")``."""
    if name == "dim" and kind in _LIST_OF_DIMS:
        return AttributeRole.DIMS
    if name == "p" and "dropout" in operator:
        return AttributeRole.PROBABILITY
    if name == "indices" and kind == "List[int]":
        return AttributeRole.POSITION
    role = _ATTRIBUTE_ROLES.get(name)
    if role is not None:
        return role
    if kind in ("bool", "Optional[bool]"):
        return AttributeRole.FLAG
    return AttributeRole.MODE if kind in ("str", "Optional[str]") else AttributeRole.OTHER


def attributes(call: OpCall) -> tuple[Attribute, ...]:
    """All arguments of a call that hold no tensor and whose type is not Tensor, in the order of the schema."""
    bound = bind(call.target, call.args, call.kwargs)
    operator = operator_name(call.target)
    found: list[Attribute] = []
    for position, (name, kind) in enumerate(argument_types(call.target)):
        value = bound.get(name)
        if any(True for _ in tensors_in(value)) or ("Tensor" in kind and value is None):
            continue
        given = position < len(call.args) or name in call.kwargs
        found.append(Attribute(name, attribute_role(name, kind, operator), kind, position, value, given))
    return tuple(found)


def tensor_meanings(call: OpCall) -> tuple[TensorMeaning, ...]:
    """What each tensor of a call means, in the order of ``call.tensors``."""
    bound = bind(call.target, call.args, call.kwargs)
    found: list[TensorMeaning] = []
    for place, (argument, entry, tensor) in enumerate(_tensors(call)):
        role = _role(call.target, argument, tensor)
        low, high = _index_range(call.target, bound, argument, entry, tensor) if role == Role.INDEX else (0, -1)
        distinct = role == Role.INDEX and _needs_distinct(call.target, bound)
        reaches = role == Role.INDEX and _decides_shape(call.target, bound)
        constant = place in call.constants
        found.append(TensorMeaning(place, argument, role, entry, low, high, distinct, reaches, constant))
    return tuple(found)


def _tensors(call: OpCall) -> Iterator[tuple[str, int | None, Tensor]]:
    named = [name for name, _ in argument_types(call.target)]
    for name, value in [*zip(named, call.args, strict=False), *call.kwargs.items()]:
        if isinstance(value, Tensor):
            yield name, None, value
        elif isinstance(value, list | tuple):
            # None entries of an index list count: each stands for a dimension that is taken whole
            for entry, part in enumerate(cast("Sequence[object]", value)):
                yield from ((name, entry, tensor) for tensor in tensors_in(part))


def _role(target: OpOverload, argument: str, tensor: Tensor) -> Role:
    operator = operator_name(target)
    role = _SPECIAL.get((operator, argument)) or _TENSOR_ROLES.get(argument, Role.DATA)
    if role == Role.INDEX and tensor.dtype == torch.bool:
        return Role.MASK
    if role == Role.INDEX and (tensor.is_floating_point() or tensor.is_complex()):
        return Role.DATA  # cross entropy with probabilities of all classes
    if role == Role.ADDED_MASK and tensor.dtype == torch.bool:
        return Role.MASK
    if role == Role.MASK and tensor.dtype != torch.bool:
        return Role.ADDED_MASK if tensor.is_floating_point() else Role.MASK
    return role


def _needs_distinct(target: OpOverload, bound: dict[str, object]) -> bool:
    if operator_name(target) not in _WRITES or bound.get("accumulate") or bound.get("reduce"):
        return False
    # one value at every place: the order does not matter
    written = next((bound[name] for name in ("src", "source", "values") if name in bound), None)
    return isinstance(written, Tensor) and written.numel() != 1


def _decides_shape(target: OpOverload, bound: dict[str, object]) -> bool:
    name = operator_name(target)
    return name == "bincount" or (name == "one_hot" and bound.get("num_classes") in (None, -1))


#: No range: such an index is left as it is. Not every operator checks, so a wrong one could write anywhere.
_UNKNOWN = (0, -1)


def _index_range(
    target: OpOverload, bound: dict[str, object], argument: str, entry: int | None, tensor: Tensor
) -> tuple[int, int]:
    """The least and largest legal value of an index, inclusive; an empty range is (0, -1)."""
    rule = _RANGES.get(operator_name(target))
    if rule is not None:
        return rule(bound, entry, tensor)
    return _along_dim(bound, entry, tensor)


def _along_dim(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    """``dim`` names the dimension of ``self`` that is indexed."""
    own, dim = bound.get("self"), bound.get("dim")
    if not isinstance(own, Tensor) or not isinstance(dim, int):
        return _UNKNOWN
    return 0, (own.shape[dim] if own.dim() else 1) - 1


def _along_dim_or_flat(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    own = bound.get("self")
    if bound.get("dim") is None and isinstance(own, Tensor):
        return 0, own.numel() - 1
    return _along_dim(bound, entry, tensor)


def _per_dimension(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    """Index tensors one per dimension, negative from the end; a bool tensor before takes as many as its rank."""
    own, given = bound.get("self"), bound.get("indices")
    if not isinstance(own, Tensor) or entry is None or not isinstance(given, list | tuple):
        return _UNKNOWN
    before = cast("Sequence[object]", given)[:entry]
    dim = sum(part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1 for part in before)
    size = own.shape[dim]
    return -size, size - 1


def _elements(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    own = bound.get("self")
    count = own.numel() if isinstance(own, Tensor) else 0
    return -count, count - 1


def _weight_rows(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    weight = bound.get("weight")
    return 0, (weight.shape[0] if isinstance(weight, Tensor) else 0) - 1


def _classes(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    scores = bound.get("self")
    if not isinstance(scores, Tensor) or scores.dim() == 0:
        return _UNKNOWN
    return 0, scores.shape[0 if scores.dim() == 1 else 1] - 1


def _class_count(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    classes = bound.get("num_classes")
    if isinstance(classes, int) and classes > 0:
        return 0, classes - 1
    return _as_seen(bound, entry, tensor)


def _unpooled(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    size = bound.get("output_size")
    return 0, (prod(cast("Sequence[int]", size)) if isinstance(size, list | tuple) else 0) - 1


def _as_seen(bound: dict[str, object], entry: int | None, tensor: Tensor) -> tuple[int, int]:
    """Where the range follows from nothing else: up to the largest value in the call, which may decide a shape."""
    return (0, int(tensor.max())) if tensor.numel() else (0, -1)


_RANGES: dict[str, Callable[[dict[str, object], int | None, Tensor], tuple[int, int]]] = {
    "embedding": _weight_rows,
    "embedding_bag": _weight_rows,
    "_embedding_bag": _weight_rows,
    "_embedding_bag_forward_only": _weight_rows,
    "index": _per_dimension,
    "_unsafe_index": _per_dimension,
    "_unsafe_masked_index": _per_dimension,
    "index_put": _per_dimension,
    "_unsafe_index_put": _per_dimension,
    "_index_put_impl": _per_dimension,
    "take_along_dim": _along_dim_or_flat,
    "take": _elements,
    "put": _elements,
    "nll_loss": _classes,
    "nll_loss_nd": _classes,
    "nll_loss_forward": _classes,
    "nll_loss2d": _classes,
    "nll_loss2d_forward": _classes,
    "cross_entropy_loss": _classes,
    "multi_margin_loss": _classes,
    "one_hot": _class_count,
    "bincount": _as_seen,
    "max_unpool2d": _unpooled,
    "max_unpool3d": _unpooled,
}
