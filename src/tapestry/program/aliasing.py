"""Which outputs of a model share memory with an input, a parameter, a buffer or another output.

Decomposition loses this, so it is read from one eager run on copies of the inputs. The module's buffers are put
back after the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch.utils import _pytree as pytree

from tapestry.program.graph import Ref
from tapestry.program.program import Alias


def observe_aliases(
    module: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    names: Mapping[str, torch.Tensor],
    input_names: Sequence[str],
) -> list[Alias | None]:
    """One entry per leaf of the result: how it shares memory, or None when its memory is its own.

    ``names`` gives the module's tensors by value name, ``input_names`` the value names of the argument leaves.
    """
    copies, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    copies = _copied(copies)
    saved = {name: tensor.clone() for name, tensor in names.items() if name.startswith(("buffer:", "const:"))}
    state = torch.get_rng_state()
    try:
        with torch.no_grad():
            run_args, run_kwargs = pytree.tree_unflatten(copies, spec)
            result = module(*run_args, **run_kwargs)
        leaves = cast("list[object]", pytree.tree_flatten(result)[0])
        return _aliases(leaves, dict(zip(input_names, copies, strict=True)), names)
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for name, tensor in saved.items():
                if not torch.equal(names[name], tensor):
                    names[name].copy_(tensor)


def _aliases(
    leaves: list[object], inputs: Mapping[str, object], names: Mapping[str, torch.Tensor]
) -> list[Alias | None]:
    bases: dict[int, tuple[Ref | int, int]] = {}
    for name, tensor in names.items():
        _add_base(bases, tensor, Ref(name))
    for name, leaf in inputs.items():
        if isinstance(leaf, torch.Tensor):
            _add_base(bases, leaf, Ref(name))
    found: list[Alias | None] = []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor) or leaf.untyped_storage().nbytes() == 0:
            found.append(None)
            continue
        base = bases.get(leaf.untyped_storage().data_ptr())
        if base is None:
            found.append(None)
            _add_base(bases, leaf, place)
            continue
        # Offsets count from the start of the base tensor, in elements of the output.
        offset = leaf.storage_offset() - base[1]
        found.append(Alias(base[0], tuple(leaf.shape), tuple(leaf.stride()), offset))
    return found


def _add_base(bases: dict[int, tuple[Ref | int, int]], tensor: torch.Tensor, name: Ref | int) -> None:
    if tensor.untyped_storage().nbytes():
        bases.setdefault(tensor.untyped_storage().data_ptr(), (name, tensor.storage_offset()))


def _copied(leaves: list[object]) -> list[object]:
    """Copies with the same strides that share memory with each other just where the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies: list[object] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            copies.append(leaf)
            continue
        storage = leaf.untyped_storage()
        copied = storages.setdefault(storage.data_ptr(), storage.clone())
        fresh = torch.empty(0, dtype=leaf.dtype)
        copies.append(fresh.set_(copied, leaf.storage_offset(), leaf.shape, leaf.stride()))  # pyright: ignore[reportArgumentType]
    return copies
