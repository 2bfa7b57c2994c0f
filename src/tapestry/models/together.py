"""Programs of one module over one state, called as the module is: the shapes of a call say which program runs it.

A language model is one: a program reads several tokens, another one token, and both write the same cache. Not here:
capturing or building any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.utils import _pytree as pytree

from tapestry.errors import InputError, UsageError
from tapestry.models.loaded import LoadedModel
from tapestry.program.capture import capture
from tapestry.program.program import Program

#: Shape and dtype of every tensor among the arguments, in order.
Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Part(Protocol):
    """What Together needs of an executable: its program, its state (tensors that may be written to), a call."""

    program: Program

    @property
    def state(self) -> dict[str, torch.Tensor]: ...

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class Together:
    """Executables over one state. Where another one is called than last time, the state is handed over by name."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """UsageError where two parts take the same shapes, or their states differ in names, shapes or dtypes."""
        if not parts:
            raise UsageError("expected at least one executable, got none")
        self._parts = {_shapes_of(part.program): part for part in parts}
        if len(self._parts) != len(parts):
            raise UsageError("expected programs of differing shapes, got two of the same")
        first = _state_of(parts[0].program)
        for part in parts[1:]:
            differing = sorted({name for name, _ in first ^ _state_of(part.program)})
            if differing:
                raise UsageError(f"expected programs with the same state, got others in {', '.join(differing[:5])}")
        self._last = parts[0]

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs, in the order given."""
        return tuple(part.program for part in self._parts.values())

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the program that was captured for arguments of these shapes; InputError where there is none."""
        leaves = pytree.tree_leaves((args, kwargs))
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor))
        if shapes not in self._parts:
            known = "; ".join(_words(entry) for entry in self._parts)
            raise InputError(f"no program takes {_words(shapes)}; there are those for {known}")
        part = self._parts[shapes]
        if part is not self._last:
            theirs, ours = self._last.state, part.state
            for name, tensor in ours.items():
                tensor.copy_(theirs[name])
            self._last = part
        return part(*args, **kwargs)


def capture_programs(loaded: LoadedModel) -> dict[str, Program]:
    """Every program of a model by name; that of ``loaded.inputs`` is called ``main``."""
    found: dict[str, Program] = {}
    for name, sets in {"main": loaded.inputs, **loaded.programs}.items():
        call = sets[0].calls[0]
        label = loaded.name if name == "main" else f"{loaded.name} {name}"
        found[name] = capture(loaded.module, call.args, call.kwargs, name=label)
    return found


def _shapes_of(program: Program) -> Shapes:
    return tuple((entry.spec.shape, entry.spec.dtype) for entry in program.inputs if entry.spec is not None)


def _state_of(program: Program) -> set[tuple[str, Shapes]]:
    return {(entry.name, ((entry.spec.shape, entry.spec.dtype),)) for entry in program.state}


def _words(shapes: Shapes) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')} {list(shape)}" for shape, dtype in shapes) or "no tensors"
