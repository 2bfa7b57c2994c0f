"""A model that is ready to be captured, with real inputs. Not here: where it comes from (load)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tapestry.program.inputs import InputSet

#: Runs a model on one call's arguments.
Runner = Callable[..., object]


@dataclass(frozen=True)
class Fact:
    """Something that a model's user would check: ``label``, what was measured, and whether it is as it should be.

    ``tokens`` are a language model's counts behind it: ``prompts``, and tokens ``compared``, ``equal`` and in ``ties``.
    """

    label: str
    value: str
    good: bool
    tokens: Mapping[str, int] | None = None


@dataclass(frozen=True)
class LoadedModel:
    """``name`` is what the user wrote. ``compare``, when there is one, judges a moved model in the model's own terms:
    it is given the model and the moved one.

    ``programs`` are further inputs for the same module, of other shapes, by a name for them: each makes a program of
    its own, which shares the module's state with the others by buffer name (together). ``note`` is what a user should
    know about how the model was read.
    """

    name: str
    module: torch.nn.Module | Callable[..., object]
    inputs: tuple[InputSet, ...]
    compare: Callable[[Runner, Runner], Sequence[Fact]] | None = None
    versions: Mapping[str, str] | None = None
    programs: Mapping[str, tuple[InputSet, ...]] = field(default_factory=dict[str, tuple[InputSet, ...]])
    note: str = ""
