"""The oracle: the same ATen call in float64. It knows no tolerance, and it never looks at a platform's result.

Rules (docs/numerics.md tells why):

* floating tensors and floating dtype attributes become float64 (complex ones complex128); strides stay;
* integers and bool are exact as they are: two's complement wrap-around is part of their meaning;
* a cast to a 16-bit or 8-bit float rounds, since narrowing is what the program asked for; a cast to float32 does
  not, so that values flow in float64 through a float32 program;
* scalars met by float32 (or narrower) tensors are first rounded to float32, as the operators themselves do;
* operators whose meaning depends on the format (comparison with a scalar, nan_to_num, nextafter, bit casts) run in
  the declared dtype: they are exact there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.numerics import references
from tapestry.numerics.arguments import (
    argument_types,
    bind,
    flatten_result,
    map_leaves,
    names,
    operator_name,
    tensors_in,
)
from tapestry.numerics.formats import is_inexact, to_odd, wide_dtype
from tapestry.numerics.no_oracle import NoOracle
from tapestry.numerics.promotion import default_float64, in_float64

#: Operators whose result is defined by the declared format; exact, so they run in it.
_IN_DECLARED_DTYPE = names("""
    eq ne lt le gt ge greater greater_equal less less_equal not_equal nan_to_num nextafter
    view_as_integer frexp threshold hardshrink heaviside isclose equal is_same_size
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d""")
#: Those of them that float64 values cannot stand in for, whatever the scalars.
_BY_FORMAT = names("nan_to_num nextafter view_as_integer frexp view view_copy")
#: Operators that read the storage behind a tensor, not only its elements.
_READS_STORAGE = frozenset({"as_strided", "as_strided_copy", "as_strided_scatter"})
#: Operators that hand out memory nobody wrote.
_UNWRITTEN = names("empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized resize")
#: Schema types at which a Python number takes part in the arithmetic; a plain ``float`` (eps, scale) is an attribute.
_SCALAR_KINDS = frozenset({"number", "Optional[number]", "Tensor", "Optional[Tensor]"})
_CASTS = frozenset({"_to_copy", "to", "type_as", "copy", "_autocast_to_reduced_precision"})
_EPS_OF_FORMAT = frozenset({"rms_norm", "_fused_rms_norm"})
_ROUNDING_CASTS = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and is_inexact(dtype) and dtype.itemsize <= 2
)


def to_oracle_dtype(tensor: Tensor) -> Tensor:
    """The tensor in the oracle's dtype (float64, complex128; exact dtypes unchanged) with the same size and strides.

    Elements between the strided ones are converted too, so that overlapping and expanded tensors stay so.
    """
    wide = wide_dtype(tensor.dtype)
    if tensor.dtype == wide or tensor.is_quantized or tensor.layout != torch.strided:
        return tensor.detach()
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_contiguous() or tensor.numel() == 0:
        return tensor.to(wide)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).to(wide).as_strided(tensor.shape, tensor.stride(), 0)


def _whole_storage(tensor: Tensor) -> Tensor:
    wide = wide_dtype(tensor.dtype)
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.detach().as_strided((room,), (1,), 0).to(wide)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@cache
def _random_by_tag(target: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags


def is_random(target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether the call draws random numbers: operators with dropout do not at probability 0 or outside training."""
    if not _random_by_tag(target):
        return False
    bound = bind(target, args, kwargs)
    if bound.get("train") is False or bound.get("training") is False:
        return False
    if any(bound.get(name) == 0.0 for name in ("dropout_p", "dropout")):
        return False
    return not ("dropout" in operator_name(target) and bound.get("p") == 0.0)


def in_declared_dtype(target: OpOverload, bound: Mapping[str, object]) -> bool:
    """Whether the call is exact in, and defined by, the declared dtype, so that the oracle runs it there."""
    name = operator_name(target)
    return name in _IN_DECLARED_DTYPE or (name in ("view", "view_copy") and isinstance(bound.get("dtype"), torch.dtype))


def oracle_args(
    target: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    declared: torch.dtype | None = None,
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with which the operator computes in float64. Tensors that are already float64 pass through.

    ``declared`` is the floating dtype that the operands have in the program; give it where they are float64 already
    because values flow on from another oracle (None: the operands' own). Returns new positional and keyword
    arguments; tensors that a mutating operator would write are copies.
    """
    convert = _whole_storage if operator_name(target) in _READS_STORAGE else to_oracle_dtype
    operands = [tensor.dtype for tensor in tensors_in([*args, dict(kwargs)])]
    floating = any(is_inexact(dtype) for dtype in operands)
    promoted = bool(operands) and not floating  # integers with a fraction give the default dtype
    narrow = _computes_in_single(args, kwargs) if declared is None else wide_dtype(declared) != declared
    single = (promoted or narrow) and bind(target, args, kwargs).get("dtype") is None
    mutates = target._schema.is_mutable

    def change(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            if single and declared is None and leaf.dim() == 0 and leaf.dtype == torch.float64:
                return leaf.detach().to(torch.float32).to(torch.float64)
            wide = convert(leaf)
            return wide.clone() if mutates and wide.data_ptr() == leaf.data_ptr() else wide
        return wide_dtype(leaf) if isinstance(leaf, torch.dtype) else leaf

    def one(kind: str, value: object) -> object:
        if single and kind in _SCALAR_KINDS and isinstance(value, int | float):
            return _as_single(float(value)) if isinstance(value, float) or (floating and abs(value) > 2**24) else value
        return map_leaves(change, value)

    types = argument_types(target)
    kwargs = {**_rounded_defaults(target, len(args)), **kwargs} if single else kwargs
    wide_args = tuple(one(kind, value) for (_, kind), value in zip(types, args, strict=False))
    kinds = dict(types)
    wide_kwargs = {name: one(kinds.get(name, ""), value) for name, value in kwargs.items()}
    if operator_name(target) not in _EPS_OF_FORMAT or bind(target, args, kwargs).get("eps") is not None:
        return wide_args, wide_kwargs
    # rms_norm without eps takes the machine epsilon of its input's format, which float64 would change
    place = [name for name, _ in types].index("eps")
    return wide_args[:place], {**wide_kwargs, "eps": torch.finfo(declared or operands[0]).eps}


@cache
def _rounded_defaults(target: OpOverload, given: int) -> dict[str, object]:
    """Fractions that the call leaves to the schema (leaky_relu's 0.01): they take part in the arithmetic, too."""
    rest = target._schema.arguments[given:]
    wanted = (entry for entry in rest if str(entry.type) in _SCALAR_KINDS and entry.has_default_value())
    return {entry.name: entry.default_value for entry in wanted if isinstance(entry.default_value, float)}


def oracle(
    target: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    declared: torch.dtype | None = None,
) -> tuple[Tensor | None, ...]:
    """The operator's results computed in float64 (complex128; integers and bool exactly), as a flat tuple.

    ``declared``: as for ``oracle_args``, where values flow in float64. Entries are None for results that are not
    tensors. Raises NoOracle, with the reason, for random operators, for uninitialised memory, and for operators that
    have neither a float64 kernel nor a written reference.
    """
    kwargs = kwargs or {}
    name = operator_name(target)
    if is_random(target, args, kwargs):
        raise NoOracle(f"{name} draws random numbers: only shape, dtype and range can be judged")
    if name in _UNWRITTEN:
        raise NoOracle(f"{name} returns memory that nothing wrote: only shape and dtype can be judged")
    bound = bind(target, args, kwargs)
    reference = references.find(name)
    if reference is not None:
        return reference(bound)
    if in_declared_dtype(target, bound) and (declared is None or name in _BY_FORMAT):
        return _in_format(target, args, kwargs, declared)
    result = _in_float64(target, args, kwargs, declared)
    rounding = _cast_dtype(name, bound)
    return result if rounding is None else tuple(_through(rounding, entry) for entry in result)


def _in_format(
    target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], declared: torch.dtype | None
) -> tuple[Tensor | None, ...]:
    def fresh(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        narrowed = declared is not None and leaf.dtype == wide_dtype(declared)
        return leaf.detach().to(declared) if narrowed else leaf.detach().clone() if target._schema.is_mutable else leaf

    changed = {name: map_leaves(fresh, value) for name, value in kwargs.items()}
    results = flatten_result(_call(target, [map_leaves(fresh, value) for value in args], changed))
    return tuple(None if entry is None else to_oracle_dtype(entry) for entry in results)


def _in_float64(
    target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], declared: torch.dtype | None
) -> tuple[Tensor | None, ...]:
    result = flatten_result(_call(target, *oracle_args(target, args, kwargs, declared)))
    if not any(_is_narrow(entry) for entry in result):
        return result
    # Integers promoted to the default dtype, or a creation without dtype
    given = oracle_args(target, args, kwargs, declared)
    for changed in in_float64(target, *given):
        try:
            asked = flatten_result(_call(target, *changed))
        except NoOracle:
            continue
        if not any(_is_narrow(entry) for entry in asked) and _shapes(asked) == _shapes(result):
            return asked
    with default_float64():
        result = flatten_result(_call(target, *given))
    narrow = [entry for entry in result if entry is not None and _is_narrow(entry)]
    if narrow:
        raise NoOracle(f"{operator_name(target)} returns {narrow[0].dtype} even for float64 arguments")
    return result


def _shapes(results: tuple[Tensor | None, ...]) -> list[tuple[torch.Size, bool] | None]:
    """What must stay as it was: shapes, and which results are floating."""
    return [None if entry is None else (entry.shape, is_inexact(entry.dtype)) for entry in results]


def _call(target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    try:
        with torch.no_grad():
            return target(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        first = str(error).strip().splitlines()[0].split(". ")[0]
        raise NoOracle(f"{operator_name(target)} does not run in float64: {first}") from error


def _computes_in_single(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a floating operand with dimensions (or, if none has any, any floating operand) is float32 or narrower."""
    floating = [tensor for tensor in tensors_in([*args, dict(kwargs)]) if is_inexact(tensor.dtype)]
    shaped = [tensor for tensor in floating if tensor.dim()] or floating
    return bool(shaped) and all(wide_dtype(tensor.dtype) != tensor.dtype for tensor in shaped)


def _as_single(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def _cast_dtype(name: str, bound: Mapping[str, object]) -> torch.dtype | None:
    """The 16-bit or 8-bit format a cast rounds to; None for any other call."""
    if name not in _CASTS:
        return None
    like = bound.get("self") if name == "copy" else bound.get("other")
    asked = like.dtype if isinstance(like, Tensor) else bound.get("dtype")
    return asked if isinstance(asked, torch.dtype) and asked in _ROUNDING_CASTS else None


def _through(dtype: torch.dtype, entry: Tensor | None) -> Tensor | None:
    if entry is None:
        return None
    once = to_odd(entry) if entry.dtype == torch.float64 else entry
    return once.to(dtype).to(wide_dtype(dtype))


def _is_narrow(entry: Tensor | None) -> bool:
    return entry is not None and entry.numel() > 0 and wide_dtype(entry.dtype) != entry.dtype
