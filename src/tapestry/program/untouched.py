"""Running a module without leaving a trace: what its code changes on the module itself is put back afterwards.

Not here: what the run computes, and the content of tensors that are written in place (aliasing knows those).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch

#: Attributes that torch keeps its registries in: buffers and parameters are state of their own, not attributes.
_TENSORS = ("_buffers", "_parameters")


class Changes:
    """What has changed on a module and its submodules since this was made; ``undo`` puts it back.

    Attributes are compared by identity, and lists, dicts and sets also by their entries.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._saved = [
            (path, entry, {key: (value, _content(value)) for key, value in vars(entry).items()})
            for path, entry in module.named_modules()
        ]

    def attributes(self) -> list[str]:
        """The paths of the attributes that are another object now, or hold other entries; no buffers or parameters."""
        found: list[str] = []
        for path, module, before in self._saved:
            after = vars(module)
            for key in dict.fromkeys([*before, *after]):
                if key not in _TENSORS and _differs(before.get(key), after, key):
                    found.append(f"{path}.{key}" if path else key)
        return found

    def undo(self) -> None:
        """Put every attribute, buffer and parameter back to the object it was, and containers to their entries."""
        for _, module, before in self._saved:
            after = vars(module)
            for key in [key for key in after if key not in before]:
                del after[key]
            for key, (value, content) in before.items():
                after[key] = value
                _refill(value, content)


@contextmanager
def untouched(module: torch.nn.Module) -> Generator[Changes]:
    """Inside, the module may change its attributes and draw random numbers; afterwards both are as before."""
    changes = Changes(module)
    generator = torch.get_rng_state()
    try:
        yield changes
    finally:
        torch.set_rng_state(generator)
        changes.undo()


def _content(value: object) -> object:
    return value.copy() if type(value) in (list, dict, set) else None  # pyright: ignore[reportAttributeAccessIssue]


def _differs(before: tuple[object, object] | None, after: dict[str, object], key: str) -> bool:
    if before is None or key not in after:
        return True
    value, content = before
    return after[key] is not value or (content is not None and not _same_entries(value, content))


def _same_entries(value: object, content: object) -> bool:
    if isinstance(value, dict):
        one, other = cast("dict[object, object]", value), cast("dict[object, object]", content)
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    if isinstance(value, set):
        return value == content
    entries, saved = cast("list[object]", value), cast("list[object]", content)
    return len(entries) == len(saved) and all(one is other for one, other in zip(entries, saved, strict=True))


def _refill(value: object, content: object) -> None:
    if content is None or _same_entries(value, content):
        return
    if isinstance(value, list):
        value[:] = cast("list[object]", content)
        return
    filled = cast("dict[object, object]", value)
    filled.clear()
    filled.update(cast("dict[object, object]", content))
