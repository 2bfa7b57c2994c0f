"""Masks that leave nothing in whole blocks of keys: faults of kernels that go over the keys in blocks show by value."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.killing import fails
from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.derive import Budget, derive
from tapestry.suite.variants.masks import BLOCKS, kept_keys

attention = torch.ops.aten.scaled_dot_product_attention.default
_KINDS = frozenset({Kind.VALUES, Kind.NONFINITE, Kind.ATTRIBUTES})


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    found = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if causal:
        mask = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return found
    return found.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else found + mask


def _in_blocks(block: int, fault: str) -> Callable[..., object]:
    """Attention with a running maximum, faulty on blocks in which every key is masked; any other call is eager's."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        right = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        if query.dtype != torch.float32 or enable_gqa or dropout_p or not key.numel() or not value.numel():
            return right
        scores = _scores(query, key, attn_mask, is_causal, scale)
        top = torch.full((*scores.shape[:-1], 1), -math.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(right)
        over = torch.zeros_like(top, dtype=torch.bool)
        for start in range(0, key.shape[-2], block):
            part = scores[..., start : start + block]
            highest = torch.maximum(top, part.amax(-1, keepdim=True))
            shift = highest if fault == "nan" else highest.nan_to_num(nan=math.nan, neginf=0.0)
            weight, kept = torch.exp(part - shift), torch.exp(top - shift)
            empty = (part == -math.inf).all(-1, keepdim=True)
            if fault == "counted":  # -inf less the maximum of -inf taken for 0, and never scaled away
                first = empty & (top == -math.inf)
                weight = torch.where(first, 1.0, weight)
                kept = torch.where((top == -math.inf) & (total > 0), 1.0, kept)
            if fault == "ends":  # leaves the loop where it should go on
                over = over | (empty & (start > 0))
                weight, kept = torch.where(over, 0.0, weight), torch.where(over, 1.0, kept)
                highest = torch.where(over, top, highest)
            total = total * kept + weight.sum(-1, keepdim=True)
            out = out * kept + weight @ value[..., start : start + block, :]
            top = highest
        return out / total

    return lambda args, kwargs: attend(*args, **kwargs)


def _base(keys: int, mask: str) -> OpCall:
    source = torch.Generator().manual_seed(keys)
    query, key, value = (torch.randn(1, 2, size, 8, generator=source) for size in (6, keys, keys))
    if not mask:
        return OpCall(attention, (query, key, value))
    kept = torch.arange(keys) < keys - torch.arange(6)[:, None] % 2
    given = kept if mask == "bool" else torch.where(kept, 0.0, torch.finfo(torch.float32).min)
    return OpCall(attention, (query, key, value, given.reshape(1, 1, 6, keys)))


@cache
def _variants(keys: int, mask: str) -> list[OpCall]:
    return [made for _, made in derive(_base(keys, mask), Budget(cases=64), _KINDS)]


@pytest.mark.parametrize(("keys", "mask"), [(12, ""), (12, "bool"), (200, "float")])
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("fault", ["nan", "counted", "ends"])
def test_a_block_without_keys_shows(fault: str, block: int, keys: int, mask: str) -> None:
    wrong = _in_blocks(block, fault)
    assert not fails(_base(keys, mask), wrong)
    assert any(fails(made, wrong) for made in _variants(keys, mask))


@pytest.mark.parametrize(("keys", "mask"), [(12, "bool"), (200, "float")])
def test_a_running_maximum_that_is_right_survives(keys: int, mask: str) -> None:
    right = _in_blocks(16, "none")
    assert not any(fails(made, right) for made in _variants(keys, mask))


@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_a_mask_that_is_there_is_varied_by_its_values(block: int, mask: str) -> None:
    base = _base(200, mask)
    made = {variant.name: call for variant, call in derive(base, Budget(cases=400)) if "mask:" in variant.name}
    masks = [call.tensors[3] for name, call in made.items() if "blocks" in name]
    assert masks
    assert all(tuple(entry.shape) == (1, 1, 6, 200) for entry in masks)
    hidden = torch.cat([(~entry if entry.dtype == torch.bool else entry < -1e30).reshape(6, 200) for entry in masks])
    assert bool((hidden[:, :block].all(-1) & ~hidden[:, block:].any(-1)).any())
    assert not bool(hidden.all(-1).any())


@pytest.mark.parametrize("length", [1, 2, 16, 17, 160])
def test_every_row_leaves_a_key(length: int) -> None:
    rows = dict(kept_keys(length))
    assert all(row.shape == (length,) and bool(row.any()) and not bool(row.all()) for row in rows.values())
    assert {int(name.rpartition("-")[2]) for name in rows if name.startswith("past-") and "x" not in name} == {
        block for block in BLOCKS if block < length
    }
