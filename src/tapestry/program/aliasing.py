"""What one eager run of a model shows: its results, what it writes, and which results share memory with what.

Decomposition loses shared memory, so it is read here, on copies of the inputs. The module is put back after the run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch.utils import _pytree as pytree

from tapestry.errors import CaptureError
from tapestry.program.graph import Ref
from tapestry.program.program import Alias, tensor_bytes
from tapestry.program.untouched import untouched


@dataclass(frozen=True)
class Observed:
    """An eager run. ``aliases`` and ``leaves`` have one entry per leaf of the result, leaves as copies.

    ``changed`` holds the new content of the parameters and buffers that the run changed, by value name.
    """

    aliases: tuple[Alias | None, ...]
    leaves: tuple[object, ...]
    changed: Mapping[str, torch.Tensor]


def observe(
    module: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    names: Mapping[str, torch.Tensor],
    input_names: Sequence[str],
    written: frozenset[str],
) -> Observed:
    """Run the model once and look.

    ``names`` gives the module's tensors by value name, ``input_names`` the value names of the argument leaves,
    ``written`` the value names that the program writes. Every argument is copied by itself, so that arguments that
    happen to share memory in the example are told apart. Raises CaptureError when the result depends on an
    attribute that the model changes, which a program cannot hold.
    """
    given, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))

    def run(copies: list[object]) -> list[object]:
        run_args, run_kwargs = pytree.tree_unflatten(copies, spec)
        return cast("list[object]", pytree.tree_flatten(module(*run_args, **run_kwargs))[0])

    with torch.no_grad(), _content_kept(names, written) as put_back, untouched(module) as changes:
        generator = torch.get_rng_state()
        copies = [_copied(leaf) for leaf in given]
        leaves = run(copies)
        bases = [
            _Base(Ref(name), tensor, whole=name not in written)
            for name, tensor in names.items()
            if _still_there(module, name, tensor)
        ]
        given_names = zip(input_names, copies, strict=True)
        bases += [_Base(Ref(name), leaf, whole=True) for name, leaf in given_names if isinstance(leaf, torch.Tensor)]
        kept = tuple(_kept(leaf) for leaf in leaves)
        found = Observed(tuple(_aliases(leaves, bases)), kept, put_back.changed(module))
        hidden = changes.attributes()
        if hidden:
            before = [_fingerprint(leaf) for leaf in leaves]
            put_back()
            torch.set_rng_state(generator)
            _check_hidden(hidden, before, run([_copied(leaf) for leaf in given]))
    return found


@contextmanager
def _content_kept(names: Mapping[str, torch.Tensor], written: frozenset[str]) -> Generator[_PutBack]:
    kept = {
        name: tensor.detach().clone()
        for name, tensor in names.items()
        if name in written or name.startswith(("buffer:", "const:"))
    }
    put_back = _PutBack(names, kept)
    try:
        yield put_back
    finally:
        put_back()


class _PutBack:
    """Restores the content of tensors that a run has written."""

    def __init__(self, names: Mapping[str, torch.Tensor], kept: Mapping[str, torch.Tensor]) -> None:
        self._names = names
        self._kept = kept

    def changed(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """What the module holds now under the names of tensors that have another content than before."""
        found: dict[str, torch.Tensor] = {}
        for name, content in self._kept.items():
            held = _held(module, name)
            now = self._names[name] if held is None else held
            if _fingerprint(now) != _fingerprint(content):
                found[name] = now.detach().clone()
        return found

    def __call__(self) -> None:
        with torch.no_grad():
            for name, content in self._kept.items():
                if not torch.equal(self._names[name], content):
                    self._names[name].copy_(content)


def _check_hidden(hidden: Sequence[str], before: Sequence[object], again: Sequence[object]) -> None:
    if list(before) == [_fingerprint(leaf) for leaf in again]:
        return
    raise CaptureError(
        f"the model changes {', '.join(hidden[:3])} when it runs, and its next result depends on it; "
        "a program keeps state in buffers only: register it with register_buffer as a tensor"
    )


def _fingerprint(leaf: object) -> object:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return leaf.dtype, tuple(leaf.shape), bytes(tensor_bytes(leaf))


def _still_there(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> bool:
    """Whether the module still holds this very memory: an assigned buffer is another tensor after the run."""
    held = _held(module, name)
    return held is None or held.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def _held(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """What the module holds now as this parameter or buffer; None for a constant, which has no place in it."""
    kind, _, path = name.partition(":")
    if kind == "const":
        return None
    owner, _, leaf = path.rpartition(".")
    return cast("torch.Tensor | None", getattr(module.get_submodule(owner), leaf, None))


def _kept(leaf: object) -> object:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True)
class _Base:
    """Memory that an output may be a view of. ``whole`` says that what lies between its elements is there, too."""

    name: Ref | int
    tensor: torch.Tensor
    whole: bool

    def alias(self, leaf: torch.Tensor) -> Alias | None:
        """How ``leaf`` views this memory, or None where strides and an offset cannot say it."""
        if _format(leaf) != _format(self.tensor):
            return None
        # Offsets count from the first element of the base.
        offset = int(leaf.storage_offset()) - int(self.tensor.storage_offset())
        found = Alias(self.name, tuple(leaf.shape), tuple(leaf.stride()), offset)
        same = offset == 0 and found.shape == tuple(self.tensor.shape) and found.stride == tuple(self.tensor.stride())
        if same and (self.whole or isinstance(self.name, int)):
            return found
        inside = offset >= 0 and offset + _span(leaf) <= _span(self.tensor)
        return found if inside and (self.whole or _span(self.tensor) == self.tensor.numel()) else None


def _format(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first one in memory to the last one."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _aliases(leaves: Sequence[object], known: Sequence[_Base]) -> list[Alias | None]:
    bases: dict[int, list[_Base]] = {}
    for base in known:
        bases.setdefault(base.tensor.untyped_storage().data_ptr(), []).append(base)
    found: list[Alias | None] = []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor) or leaf.untyped_storage().nbytes() == 0:
            found.append(None)
            continue
        candidates = bases.setdefault(leaf.untyped_storage().data_ptr(), [])
        aliases = (base.alias(leaf) for base in candidates)
        found.append(next((alias for alias in aliases if alias is not None), None))
        if found[-1] is None:
            candidates.append(_Base(place, leaf, whole=False))
    return found


def _copied(leaf: object) -> object:
    """A copy with the same strides and offset, in memory of its own; what is no tensor stays as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    leaf = leaf.resolve_neg()
    plain = torch.empty(0, dtype=leaf.dtype)
    plain.set_(leaf.untyped_storage().clone(), leaf.storage_offset(), tuple(leaf.shape), leaf.stride())  # pyright: ignore
    return plain.conj() if leaf.is_conj() else plain
