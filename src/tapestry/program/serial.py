"""Graphs as canonical JSON: the same graph always gives the same bytes, so a hash of them is a key.

Not here: tensors (they are stored by content elsewhere), and anything that could run code: operators are looked
up by name in ``torch.ops`` namespaces that are already loaded.
"""

from __future__ import annotations

import math
from typing import TypeAlias, cast

import msgspec
import torch

from tapestry.errors import FormatError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec

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
    if len(parts) != 3:
        raise FormatError(f"expected an operator as namespace.name.overload, got {name!r}")
    found: object = torch.ops
    for part in parts:
        found = getattr(found, part, None)
        if found is None:
            raise FormatError(f"operator {name} is not in torch {torch.__version__}; was it stored by another version?")
    return cast("torch._ops.OpOverload", found)


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
    match kind, body:
        case "ref", [str(name), int(item)]:
            return Ref(name, item)
        case "float", str(text) if text in {"inf", "-inf", "nan"}:
            return float(text)
        case "complex", [real, imaginary]:
            return complex(cast("float", decode_argument(real)), cast("float", decode_argument(imaginary)))
        case "dtype", str(name):
            return dtype_named(name)
        case "device", str(name) if name.split(":")[0] in {"cpu", "cuda", "meta"}:
            return torch.device(name)
        case "layout", str(name) if name in _LAYOUTS:
            return _LAYOUTS[name]
        case "memory_format", str(name) if name in _MEMORY_FORMATS:
            return _MEMORY_FORMATS[name]
        case _:
            raise FormatError(f"expected a stored argument, got {value!r}")


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
        case [str(dtype), list(shape), list(stride)] if all(type(n) is int for n in [*shape, *stride]):
            return TensorSpec(tuple(cast("list[int]", shape)), tuple(cast("list[int]", stride)), dtype_named(dtype))
        case _:
            raise FormatError(f"expected [dtype, shape, stride], got {value!r}")


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
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"expected a stored graph, got bytes that do not decode: {error}") from error
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


def _required(spec: TensorSpec | None) -> TensorSpec:
    if spec is None:
        raise FormatError("expected a spec for every input of a stored graph, got null")
    return spec
