"""What a value must be to fit an argument of a schema, and turning a value of one kind into another.

The kinds are JIT type names such as ``Optional[List[int]]``. Not here: which values an argument means (meanings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

_MISSING = object()


@dataclass(frozen=True)
class Argument:
    """An argument of a schema. ``kind`` is its type without ``Optional``, ``length`` the N of ``int[N]``."""

    name: str
    kind: str
    optional: bool
    length: int | None
    default: object
    keyword_only: bool

    @property
    def required(self) -> bool:
        return self.default is _MISSING


@cache
def arguments(target: OpOverload) -> tuple[Argument, ...]:
    """The arguments of an overload, in order."""
    found: list[Argument] = []
    for entry in target._schema.arguments:
        kind, optional = str(entry.real_type), False
        if kind.startswith("Optional["):
            kind, optional = kind[len("Optional[") : -1], True
        default = entry.default_value if entry.has_default_value() else _MISSING
        length = cast("int | None", getattr(entry, "N", None))
        found.append(Argument(entry.name, kind, optional, length, default, entry.kwarg_only))
    return tuple(found)


def number(value: object) -> bool:
    """A number or a truth value, as ATen's Scalar takes it."""
    return isinstance(value, int | float | complex)


def whole(value: object) -> bool:
    """An integer that is no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(check: Callable[[object], bool]) -> Callable[[object], bool]:
    def all_fit(value: object) -> bool:
        return isinstance(value, list | tuple) and all(check(entry) for entry in cast("list[object]", value))

    return all_fit


def _tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


_CHECKS: dict[str, Callable[[object], bool]] = {
    "Tensor": _tensor,
    "List[Tensor]": _listed(_tensor),
    "List[Optional[Tensor]]": _listed(lambda value: value is None or _tensor(value)),
    "int": whole,
    "List[int]": _listed(whole),
    "float": lambda value: number(value) and not isinstance(value, bool | complex),
    "List[float]": _listed(lambda value: number(value) and not isinstance(value, bool | complex)),
    "number": number,
    "List[number]": _listed(number),
    "complex": number,
    "bool": _is(bool),
    "List[bool]": _listed(_is(bool)),
    "str": _is(str),
    "ScalarType": _is(torch.dtype),
    "Layout": _is(torch.layout),
    "Device": _is(torch.device),
    "MemoryFormat": _is(torch.memory_format),
}


def fits(value: object, argument: Argument) -> bool:
    """Whether the schema takes the value for the argument."""
    if value is None:
        return argument.optional
    check = _CHECKS.get(argument.kind)
    return check is not None and check(value)


def converted(value: object, argument: Argument) -> object:
    """The value as the argument takes it: a number for one of its tensors, a list for a number; NotImplemented
    where nothing of its kind can be made from it.
    """
    if fits(value, argument):
        return value
    if isinstance(value, Tensor):
        return _from_tensor(value, argument)
    if argument.kind == "Tensor" and number(value):
        return torch.tensor(value)
    if argument.kind == "List[int]" and whole(value):
        return [value] * (argument.length or 1)
    if isinstance(value, list | tuple) and value:
        return converted(cast("list[object]", value)[0], argument)
    return NotImplemented


def _from_tensor(value: Tensor, argument: Argument) -> object:
    if argument.kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [value, value]
    if not value.numel() or value.layout != torch.strided or value.is_quantized:
        return NotImplemented
    flat = value.flatten()
    # The largest one: zero would make a poor divisor, factor or power.
    picked = flat[int(flat.double().abs().argmax())].item() if not value.is_complex() else flat[0].item()
    if fits(picked, argument):
        return round(picked, 3) if isinstance(picked, float) else picked
    if argument.kind == "int" and isinstance(picked, float) and abs(picked) < 2**31:
        return int(picked)
    return NotImplemented
