"""Graphs as canonical JSON: the same graph always gives the same bytes, so a hash of them is a key.

Not here: tensors (they are stored by content elsewhere), and anything that could run code: operators are looked
up by name in ``torch.ops`` namespaces that are already loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

import msgspec
import torch

from tapestry.errors import FormatError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec, operands

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

_DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_LAYOUTS = {"strided": torch.strided}
_MEMORY_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}

#: Devices by torch's names; a small index, which torch.device takes.
_DEVICE = re.compile(r"[a-z]{2,16}(:\d{1,2})?")


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype called ``name``; FormatError when torch has none."""
    if name not in _DTYPES:
        raise FormatError(f"expected the name of a torch dtype, got {name!r}")
    return _DTYPES[name]


def overload_name(target: torch._ops.OpOverload) -> str:
    """``aten.linear.default`` for ``torch.ops.aten.linear.default``."""
    return str(target)


def overload_named(name: str) -> torch._ops.OpOverload:
    """The overload called ``aten.op.overload``; FormatError when this torch does not have it."""
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        raise FormatError(f"expected an operator as namespace.name.overload, got {name!r}")
    packet: object = getattr(getattr(torch.ops, parts[0], None), parts[1], None)
    found = getattr(packet, parts[2], None) if isinstance(packet, torch._ops.OpOverloadPacket) else None
    if not isinstance(found, torch._ops.OpOverload):
        raise FormatError(f"operator {name} is not in torch {torch.__version__}; was it stored by another version?")
    return found


def encode_argument(value: object) -> Json:
    """An argument as JSON. Lists and tuples are not told apart: ATen does not either. UsageError for other types."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [encode_argument(value.real), encode_argument(value.imag)]}
    if isinstance(value, Ref):
        return {"ref": [value.name, value.item]}
    if isinstance(value, tuple | list):
        return [encode_argument(entry) for entry in cast("tuple[object, ...]", value)]
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    raise FormatError(f"an argument of type {type(value).__name__} cannot be stored: {value!r}")


def decode_argument(value: Json) -> Argument:
    """The inverse of encode_argument; FormatError for JSON that encode_argument does not write."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return tuple(decode_argument(entry) for entry in value)
    if len(value) != 1:
        raise FormatError(f"expected an object with one key, got keys {sorted(value)}")
    ((kind, body),) = value.items()
    decoder = _DECODERS.get(kind)
    found = decoder(body) if decoder is not None else None
    if found is None:
        raise FormatError(f"expected a stored argument, got {value!r}")
    return found


def _decode_ref(body: Json) -> Ref | None:
    match body:
        case [str(name), int(item)] if type(item) is int and item >= 0:
            return Ref(name, item)
        case _:
            return None


def _decode_float(body: Json) -> float | None:
    return float(body) if isinstance(body, str) and body in {"inf", "-inf", "nan"} else None


def _decode_complex(body: Json) -> complex | None:
    if not isinstance(body, list) or len(body) != 2:
        return None
    parts = [decode_argument(entry) for entry in body]
    real, imaginary = parts
    return complex(real, imaginary) if isinstance(real, float) and isinstance(imaginary, float) else None


def _decode_device(body: Json) -> torch.device | None:
    return torch.device(body) if isinstance(body, str) and _DEVICE.fullmatch(body) else None


#: One decoder for each kind of object; None for a body that encode_argument does not write.
_DECODERS: dict[str, Callable[[Json], Argument]] = {
    "ref": _decode_ref,
    "float": _decode_float,
    "complex": _decode_complex,
    "dtype": lambda body: dtype_named(body) if isinstance(body, str) else None,
    "device": _decode_device,
    "layout": lambda body: _LAYOUTS.get(body) if isinstance(body, str) else None,
    "memory_format": lambda body: _MEMORY_FORMATS.get(body) if isinstance(body, str) else None,
}


def encode_spec(spec: TensorSpec | None) -> Json:
    """``[dtype, shape, stride]`` or None."""
    if spec is None:
        return None
    return [dtype_name(spec.dtype), list(spec.shape), list(spec.stride)]


def decode_spec(value: Json) -> TensorSpec | None:
    """The inverse of encode_spec."""
    match value:
        case None:
            return None
        case [str(dtype), list(shape), list(stride)] if _sizes(shape) and _sizes(stride) and len(shape) == len(stride):
            return TensorSpec(tuple(cast("list[int]", shape)), tuple(cast("list[int]", stride)), dtype_named(dtype))
        case _:
            raise FormatError(f"expected [dtype, shape, stride], got {value!r}")


def _sizes(values: list[Json]) -> bool:
    return all(type(entry) is int and 0 <= entry < 1 << 63 for entry in values)


def dumps(graph: Graph) -> bytes:
    """The graph as canonical JSON."""
    document = {
        "inputs": [[entry.name, encode_spec(entry.spec), entry.constant] for entry in graph.inputs],
        "calls": [
            [
                call.name,
                overload_name(call.target),
                encode_argument(call.args),
                {name: encode_argument(value) for name, value in call.kwargs},
                [encode_spec(spec) for spec in call.outputs],
                call.is_tuple,
            ]
            for call in graph.calls
        ],
        "outputs": [[ref.name, ref.item] for ref in graph.outputs],
    }
    return msgspec.json.encode(document, order="deterministic")


class _Document(msgspec.Struct):
    inputs: list[tuple[str, object, bool]]
    calls: list[tuple[str, str, list[object], dict[str, object], list[object], bool]]
    outputs: list[tuple[str, int]]


def loads(data: bytes) -> Graph:
    """The graph stored in ``data``; FormatError when it is not one."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"expected a stored graph, got bytes that do not decode: {error}") from error
    try:
        graph = _graph(document)
    except RecursionError as error:
        raise FormatError("expected a stored graph, got arguments nested too deeply") from error
    _check_closed(graph)
    return graph


def _graph(document: _Document) -> Graph:
    inputs = tuple(
        GraphInput(name, _required(decode_spec(cast("Json", spec))), constant)
        for name, spec, constant in document.inputs
    )
    calls = tuple(
        Call(
            name,
            overload_named(target),
            tuple(decode_argument(cast("Json", value)) for value in args),
            tuple((key, decode_argument(cast("Json", value))) for key, value in sorted(kwargs.items())),
            tuple(decode_spec(cast("Json", spec)) for spec in outputs),
            is_tuple,
        )
        for name, target, args, kwargs, outputs, is_tuple in document.calls
    )
    return Graph(inputs, calls, tuple(Ref(name, item) for name, item in document.outputs))


def _check_closed(graph: Graph) -> None:
    """Every name is given once, and every value is made before it is read."""
    results = {entry.name: 1 for entry in graph.inputs}
    if len(results) < len(graph.inputs):
        raise FormatError("expected inputs of different names in a stored graph")
    for call in graph.calls:
        _check_made(operands(call), results)
        if call.name in results:
            raise FormatError(f"expected one value of each name in a stored graph, got {call.name!r} twice")
        results[call.name] = len(call.outputs)
    _check_made(graph.outputs, results)


def _check_made(refs: Iterable[Ref], results: Mapping[str, int]) -> None:
    for ref in refs:
        if not 0 <= ref.item < results.get(ref.name, 0):
            raise FormatError(f"expected values that are made before they are read, got {ref.name}.{ref.item}")


def _required(spec: TensorSpec | None) -> TensorSpec:
    if spec is None:
        raise FormatError("expected a spec for every input of a stored graph, got null")
    return spec
