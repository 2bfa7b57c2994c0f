"""Overloads by name, which of them can run here at all, and which of them a model can contain.

Not here: calls of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import torch
from torch._C import _dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key, _jit_get_all_schemas
from torch._ops import OpOverload

#: Where the operators of a namespace are registered that torch does not load by itself.
_HOMES = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}

#: Kernels that stand for the CPU's own, and take the call apart into others.
_KEYS = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")

#: Types of arguments that no stored call can hold.
_NO_VALUES = ("Storage", "Stream", "__torch__", "QScheme", "Dimname")


def find(name: str) -> OpOverload | None:
    """The overload of a full name such as ``aten.add.Tensor``, or None."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    home = _HOMES.get(parts[0])
    if home is not None:
        importlib.import_module(home)
    found: object = torch.ops
    for part in parts:
        found = getattr(found, part, None)
    return found if isinstance(found, OpOverload) else None


def overload_names(name: str) -> list[str]:
    """The full names of an operator's overloads, for ``aten.add`` or ``aten.add.Wrong``; empty if there is none."""
    space, _, rest = name.partition(".")
    packet = getattr(getattr(torch.ops, space, None), rest.partition(".")[0], None)
    if packet is None or not hasattr(packet, "overloads"):
        return []
    return [f"{space}.{rest.partition('.')[0]}.{overload}" for overload in packet.overloads()]


def obstacle(target: OpOverload) -> str:
    """Why the overload cannot be called with plain values on the CPU; empty when nothing is known against it."""
    for argument in target._schema.arguments:
        kind = str(argument.real_type)
        if any(word in kind for word in _NO_VALUES) or kind == "Generator":
            return f"its argument {argument.name} is a {kind}, which no stored call can hold"
    name = _full_name(target)
    if not _known(name):
        return "it belongs to scripts: the dispatcher does not know it"
    if not any(_dispatch_has_kernel_for_dispatch_key(name, key) for key in _KEYS):
        return "it has no kernel for dense tensors on the CPU"
    return ""


def _known(name: str) -> bool:
    try:
        _dispatch_has_kernel_for_dispatch_key(name, "CPU")
    except RuntimeError:
        return False
    return True


def in_scope() -> Iterator[OpOverload]:
    """All ATen overloads that a model's graph may hold: dispatched, not ``out=``, backward, foreach or internal.

    What the dispatcher does not know is TorchScript's own, on Python values.
    """
    dispatched = frozenset(_dispatch_get_all_op_names())
    for schema in _jit_get_all_schemas():
        space, _, base = schema.name.partition("::")
        internal = base.startswith("_") and not base.startswith("__")
        if space != "aten" or internal or "backward" in base or "foreach" in base:
            continue
        target = find(f"aten.{base}.{schema.overload_name or 'default'}")
        if target is not None and _full_name(target) in dispatched and not any(arg.is_out for arg in schema.arguments):
            yield target


def _full_name(target: OpOverload) -> str:
    """The dispatcher's name, such as ``aten::add.Tensor`` or ``aten::relu``."""
    schema = target._schema
    return schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
