"""The 16-bit floats as bits: devices store them in 16 bits and compute in float32, whether they have them or not.

Where a device cannot address 16 bits (WGSL), the buffer holds float32 values that are rounded to the 16-bit format.
Decoding is exact, encoding rounds to nearest even (IEEE 754-2019, binary16 and the upper half of binary32), in
integer operations only, so that no device extension and no driver's rounding mode matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import te, tirx
from tvm.relax import BlockBuilder

from tapestry.backends.tvm.adapter.values import Converter, Node, cast, dtype_of

HALVES = frozenset({torch.float16, torch.bfloat16})


def _u32(value: Any) -> Any:
    return tirx.Cast("uint32", value) if not isinstance(value, int) else tirx.const(value, "uint32")


def _float(bits: Any) -> Any:
    return tirx.reinterpret("float32", bits)


def _bits(value: Any) -> Any:
    return tirx.reinterpret("uint32", value)


def _decode_half(stored: Any) -> Any:
    bits = _u32(stored)
    sign = (bits & _u32(0x8000)) << _u32(16)
    magnitude = bits & _u32(0x7FFF)
    wide = magnitude << _u32(13)
    subnormal = _bits(tirx.Cast("float32", magnitude) * tirx.const(2.0**-24, "float32"))
    normal = tirx.Select(magnitude >= _u32(0x7C00), wide + _u32(224 << 23), wide + _u32(112 << 23))
    return _float(tirx.Select(magnitude >= _u32(0x0400), normal, subnormal) | sign)


def _encode_half(value: Any) -> Any:
    bits = _bits(value)
    sign = (bits >> _u32(16)) & _u32(0x8000)
    magnitude = bits & _u32(0x7FFFFFFF)
    odd = (magnitude >> _u32(13)) & _u32(1)
    normal = (magnitude - _u32(112 << 23) + _u32(0xFFF) + odd) >> _u32(13)
    # One half has the spacing of half's subnormals: the addition rounds.
    subnormal = _bits(_float(magnitude) + tirx.const(0.5, "float32")) - _u32(126 << 23)
    finite = tirx.Select(magnitude >= _u32(0x38800000), normal, subnormal)
    large = tirx.Select(magnitude > _u32(0x7F800000), _u32(0x7E00), _u32(0x7C00))
    return tirx.Cast("uint16", sign | tirx.Select(magnitude >= _u32(0x477FF000), large, finite))


def _decode_bfloat(stored: Any) -> Any:
    return _float(_u32(stored) << _u32(16))


def _encode_bfloat(value: Any) -> Any:
    bits = _bits(value)
    rounded = (bits + _u32(0x7FFF) + ((bits >> _u32(16)) & _u32(1))) >> _u32(16)
    nan = (bits >> _u32(16)) | _u32(0x40)
    return tirx.Cast("uint16", tirx.Select((bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000), nan, rounded))


def _round_half(value: Any) -> Any:
    """The nearest float16, as float32."""
    bits = _bits(value)
    sign = bits & _u32(0x80000000)
    magnitude = bits & _u32(0x7FFFFFFF)
    odd = (magnitude >> _u32(13)) & _u32(1)
    normal = (magnitude + _u32(0xFFF) + odd) & _u32(0xFFFFE000)
    # One half has the spacing of half's subnormals: the addition rounds, and leaves a count of 2**-24.
    count = _bits(_float(magnitude) + tirx.const(0.5, "float32")) - _u32(126 << 23)
    subnormal = _bits(tirx.Cast("float32", count) * tirx.const(2.0**-24, "float32"))
    finite = tirx.Select(magnitude >= _u32(0x38800000), normal, subnormal)
    large = tirx.Select(magnitude > _u32(0x7F800000), magnitude, _u32(0x7F800000))
    return _float(sign | tirx.Select(magnitude >= _u32(0x477FF000), large, finite))


def _round_bfloat(value: Any) -> Any:
    """The nearest bfloat16, as float32."""
    bits = _bits(value)
    rounded = (bits + _u32(0x7FFF) + ((bits >> _u32(16)) & _u32(1))) & _u32(0xFFFF0000)
    return _float(tirx.Select((bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000), bits, rounded))


_ROUND = {torch.float16: _round_half, torch.bfloat16: _round_bfloat}
_DECODE = {torch.float16: _decode_half, torch.bfloat16: _decode_bfloat}
_ENCODE = {torch.float16: _encode_half, torch.bfloat16: _encode_bfloat}


#: TVM's OpPatternKind of a function that takes part in no fusion.
_OPAQUE = {"op_pattern": 8}


def _elementwise(
    builder: BlockBuilder,
    value: Any,
    formula: Callable[[Any], Any],
    title: str,
    attributes: dict[str, int] | None = None,
) -> Any:
    def compute(tensor: Any) -> Any:
        return te.compute(tensor.shape, lambda *index: formula(tensor(*index)), name=title)

    return builder.emit_te(compute, value, primfunc_name_hint=title, primfunc_attrs=attributes)


def _to_copy(imp: Any, node: Node) -> Any:
    """A cast. TVM's own truncates floats to bool, and has no 16-bit floats on devices without them."""
    source, target = dtype_of(node.args[0]), dtype_of(node)
    value = imp.env[node.args[0]]
    if source == target:
        return value
    widened = imp.type_name(torch.float16) == "float32"
    if source in HALVES and widened:
        source = torch.float32
    elif source in HALVES:
        value = _elementwise(imp.block_builder, value, _DECODE[source], "decode")
        source = torch.float32
    if target not in HALVES:
        return cast(imp, value, target)
    # Both formulas read their operand many times: inlined into each other over a chain of operators, TVM's
    # simplifier takes minutes. Stored bits end every chain.
    wide = cast(imp, value, torch.float32)
    return _elementwise(imp.block_builder, wide, (_ROUND if widened else _ENCODE)[target], "encode", _OPAQUE)


#: By the name that TVM's importer uses.
CASTS: dict[str, Converter] = {"_to_copy.default": _to_copy}
