"""Rows of masks as kernels that go over keys in blocks meet them: blocks in which nothing is left.

Such a kernel carries a running maximum and a running sum from one block of keys to the next (M. Milakov and
N. Gimelshein, Online normalizer calculation for softmax, arXiv:1805.02867; T. Dao et al., FlashAttention,
arXiv:2205.14135). Before the first key that counts its maximum is still -inf, and -inf - (-inf) is NaN. In every row at
least one key is left, so that its result is defined. Not here: which tensor is a mask (meaning).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from tapestry.suite.variants.patterns import Pattern, noise

#: Keys that kernels take at once: those of matrix units and of work-groups first, then of vector registers.
BLOCKS = (32, 16, 64, 128, 8, 4)

_Set = tuple[str, int, tuple[Pattern, ...]]


@cache
def kept_keys(length: int) -> tuple[tuple[str, Tensor], ...]:
    """Rows (bool, of ``length``) that say which keys are left, by name; none is all False.

    For every block that is shorter than the row: nothing in the first block, one key only, nothing in the last block,
    nothing in the first two, in every other one, and in those between.
    """
    place = torch.arange(length)
    blocks = [block for block in BLOCKS if block < length]
    rows = [(f"past-{block}", place >= block) for block in blocks]
    rows += [(f"only-key-{block}", place == block) for block in blocks]
    rows += [(f"up-to-last-{block}", place < (length - 1) // block * block) for block in blocks]
    rows += [(f"past-2x{block}", place >= 2 * block) for block in blocks if 2 * block < length]
    rows += [(f"every-other-{block}", place // block % 2 == 1) for block in blocks]
    rows += [(f"but-every-other-{block}", place // block % 2 == 0) for block in blocks if 2 * block < length]
    return tuple(rows)


def kept_blocks(length: int) -> tuple[_Set, ...]:
    """The sets of rows for a bool mask of keys: name, rank, rows."""
    rows = tuple(Pattern(name, lambda length, dtype, row=row: row) for name, row in kept_keys(length))
    return (("blocks", 0, rows),) if rows else ()


def added_blocks(length: int) -> tuple[_Set, ...]:
    """The sets of rows for a mask that is added to scores: the least number of the dtype, and -inf."""
    finite: list[Pattern] = []
    infinite: list[Pattern] = []
    for seed, (name, row) in enumerate(kept_keys(length)):

        def least(length: int, dtype: torch.dtype, row: Tensor = row, seed: int = seed) -> Tensor:
            return added(row, torch.finfo(dtype).min, seed)

        def lowest(length: int, dtype: torch.dtype, row: Tensor = row, seed: int = seed) -> Tensor:
            return added(row, -torch.inf, seed)

        finite.append(Pattern(name, least))
        infinite.append(Pattern(name, lowest))
    return (("blocks", 0, tuple(finite)), ("nonfinite-blocks", 0, tuple(infinite))) if finite else ()


def added(kept: Tensor, masked: float, seed: int) -> Tensor:
    """Float64: small biases where keys are left, ``masked`` elsewhere."""
    return torch.where(kept, noise(kept.shape[-1], 31 + seed) / 2, masked)
