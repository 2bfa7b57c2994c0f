"""Faults to inject, from any Python file: plain objects that say what a broken platform returns.

An object is a fault when it has the attributes of `FaultLike`; the file may keep them in a dict or list of any name, or
one by one. Not here: trying them on calls.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from tapestry.errors import FormatError, UsageError
from tapestry.program.serial import overload_named

#: A fault on one call takes its arguments; one on several calls takes their steps.
Apply = Callable[..., object]


class FaultLike(Protocol):
    """What makes an object a fault.

    ``op``: the overload before decomposition (``aten.tanh.default``); ``also``: further ones. ``apply(args, kwargs)``
    returns what the broken platform gives, the right result where the fault does not bite. With ``ops`` the fault
    needs several calls in one part: ``apply(steps)`` takes their steps and returns the result of each.
    """

    name: str
    fault_class: str
    op: str
    apply: Apply
    also: Sequence[str]
    ops: Sequence[str]


@dataclass(frozen=True)
class Fault:
    """A fault as it was read: ``targets`` are the overloads it is about, of which ``ops`` has to hold several."""

    name: str
    fault_class: str
    op: str
    also: tuple[str, ...]
    ops: tuple[str, ...]
    apply: Apply
    note: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """All overloads it names, each once."""
        return tuple(dict.fromkeys(name for name in (self.op, *self.also, *self.ops) if name))

    @property
    def subject(self) -> str:
        """The operator, or the operators joined, that reports name."""
        return self.op or " + ".join(self.ops)


@dataclass(frozen=True)
class FaultFile:
    """The faults of a file, in its order, with the file's SHA-256."""

    path: Path
    digest: str
    faults: tuple[Fault, ...]


def read_faults(path: Path, names: Sequence[str] = ()) -> FaultFile:
    """Run a Python file and collect its faults, all or those named.

    UsageError when there is no such file, it does not run, holds no fault, or lacks a named one; FormatError when a
    fault lacks an attribute or names an operator that PyTorch does not have.
    """
    if not path.is_file():
        raise UsageError(f"expected a Python file with faults, got {path}, which is no file")
    module = _run(path)
    found: dict[str, Fault] = {}
    for entry in _faults_in(module):
        found.setdefault(entry.name, _checked(entry, path))
    if not found:
        raise UsageError(
            f"{path} holds no fault: expected objects with name, fault_class, op and apply (and ops, also)"
        )
    missing = [name for name in names if name not in found]
    if missing:
        raise UsageError(f"{path} has no fault {missing[0]!r}; it has {', '.join(found)}")
    chosen = tuple(found[name] for name in names) if names else tuple(found.values())
    return FaultFile(path, hashlib.sha256(path.read_bytes()).hexdigest(), chosen)


def faults_named(text: str) -> FaultFile:
    """The faults of ``FILE.py:NAME[,NAME…]``, or all of ``FILE.py``. Errors as read_faults."""
    path, _, names = text.rpartition(":") if ".py:" in text else (text, "", "")
    return read_faults(Path(path), [name.strip() for name in names.split(",") if name.strip()])


def _run(path: Path) -> ModuleType:
    name = f"tapestry_faults_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"expected a Python file with faults, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{path} does not run: {type(error).__name__}: {error}") from error
    return module


def _faults_in(module: ModuleType) -> Iterator[FaultLike]:
    for value in vars(module).values():
        if isinstance(value, Mapping):
            yield from _those(cast("Mapping[object, object]", value).values())
        elif isinstance(value, list | tuple):
            yield from _those(cast("Sequence[object]", value))
        else:
            yield from _those((value,))


def _those(values: object) -> Iterator[FaultLike]:
    for entry in cast("Sequence[object]", values):
        if not isinstance(entry, type) and all(hasattr(entry, name) for name in ("name", "fault_class", "op", "apply")):
            yield cast("FaultLike", entry)


def _checked(entry: FaultLike, path: Path) -> Fault:
    name = str(entry.name)
    op, also, ops = str(entry.op or ""), _names(entry, "also"), _names(entry, "ops")
    if not callable(entry.apply):
        raise FormatError(f"{path}: the apply of fault {name} cannot be called")
    if not (op or ops):
        raise FormatError(f"{path}: fault {name} names no operator; set op, or ops for several in one part")
    for target in (op, *also, *ops):
        if target:
            try:
                overload_named(target)
            except FormatError as error:
                raise FormatError(f"{path}: fault {name}: {error}") from error
    note = str(getattr(entry, "note", ""))
    return Fault(name, str(entry.fault_class), op, also, ops, entry.apply, note)


def _names(entry: FaultLike, attribute: str) -> tuple[str, ...]:
    value = cast("Sequence[object]", getattr(entry, attribute, ()) or ())
    return (value,) if isinstance(value, str) else tuple(str(name) for name in value)
