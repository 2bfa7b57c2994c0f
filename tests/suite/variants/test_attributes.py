"""Variants with other arguments: eager takes them, and faults about arguments show on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.usual_calls import CALLS, aten, normal
from tapestry.suite.variants.attributes import MOST_ATTRIBUTES, attribute_variants
from tapestry.suite.variants.attributes_binding import changed
from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.quiet import eager_or_none


def _id(call: OpCall) -> str:
    return str(call.target)


def test_most_of_what_is_proposed_is_taken_by_eager() -> None:
    proposed = taken = 0
    for call in CALLS:
        variants = list(attribute_variants(call))
        assert len({variant.name for variant in variants}) == len(variants) <= MOST_ATTRIBUTES
        assert all(variant.kind == Kind.ATTRIBUTES for variant in variants)
        proposed += len(variants)
        taken += sum(eager_or_none(variant.build()) is not None for variant in variants)
    assert taken >= proposed * 2 / 3


@pytest.mark.parametrize("call", CALLS, ids=_id)
def test_a_call_with_arguments_besides_tensors_has_variants(call: OpCall) -> None:
    plain = [row for row in call.target._schema.arguments if "Tensor" not in str(row.type)]
    made = [variant.build() for variant in attribute_variants(call)]
    assert bool(made) >= bool(plain)
    assert not plain or any(eager_or_none(variant) is not None for variant in made)


def test_an_argument_left_out_in_the_middle_is_written_out() -> None:
    call = OpCall(aten.avg_pool2d.default, (normal(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], True))
    assert changed(call, {}, ["stride"]).args[1:] == ([2, 2], [], [0, 0], True)
    assert changed(call, {}, ["ceil_mode", "padding", "stride"]).args[1:] == ([2, 2],)


def test_constants_keep_their_place_when_a_tensor_is_dropped() -> None:
    call = OpCall(aten.layer_norm.default, (normal(4, 6), [6], normal(6), normal(6)), constants=frozenset({2}))
    assert changed(call, {"weight": None}).constants == {1}


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="has no argument"):
        changed(OpCall(aten.relu.default, (normal(3),)), {"alpha": 2})


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bool]),
    target=st.sampled_from(
        [aten.sum.dim_IntList, aten.softmax.int, aten.flip.default, aten.add.Tensor, aten.gelu.default]
    ),
)
def test_no_rank_or_dtype_makes_it_raise(shape: list[int], dtype: torch.dtype, target: object) -> None:
    tensor = torch.ones(shape).to(dtype)
    rest = {aten.sum.dim_IntList: ([],), aten.softmax.int: (-1,), aten.flip.default: ([],), aten.add.Tensor: (tensor,)}
    call = OpCall(target, (tensor, *rest.get(target, ())))  # pyright: ignore
    for variant in attribute_variants(call):
        assert isinstance(variant.build(), OpCall)


_FAULTS: dict[str, tuple[OpCall, Callable[..., object]]] = {
    "alpha is dropped": (
        OpCall(aten.add.Tensor, (normal(4, 6), normal(4, 6))),
        lambda self, other, alpha=1: torch.add(self, other),
    ),
    "only the last dim is flipped": (
        OpCall(aten.flip.default, (normal(4, 6), [1])),
        lambda self, dims: torch.flip(self, dims[-1:]),
    ),
    "a missing stride is 1": (
        OpCall(aten.avg_pool2d.default, (normal(1, 2, 8, 8), [2, 2], [2, 2])),
        lambda self, kernel, stride=(), *rest: F.avg_pool2d(self, kernel, stride or 1, *rest),
    ),
    "a ceiling is a floor": (
        OpCall(aten.max_pool2d.default, (normal(1, 2, 9, 9), [2, 2], [2, 2])),
        lambda self, kernel, stride=(), padding=0, dilation=1, ceil_mode=False: F.max_pool2d(
            self, kernel, stride or kernel, padding, dilation
        ),
    ),
    "padding always counts": (
        OpCall(aten.avg_pool2d.default, (normal(1, 2, 8, 8), [2, 2], [2, 2])),
        lambda self, kernel, stride=(), padding=0, ceil_mode=False, count=True, divisor=None: F.avg_pool2d(
            self, kernel, stride or kernel, padding, ceil_mode, True, divisor
        ),
    ),
    "keepdim is dropped": (
        OpCall(aten.sum.dim_IntList, (normal(4, 6), [1])),
        lambda self, dim=None, keepdim=False, *, dtype=None: torch.sum(self, dim, dtype=dtype),
    ),
    "always the last dim": (
        OpCall(aten.softmax.int, (normal(4, 6), -1)),
        lambda self, dim, dtype=None: torch.softmax(self, -1, dtype=dtype),
    ),
    "a missing bound stays at -1": (
        OpCall(aten.clamp.default, (normal(4, 6), -1, 1)),
        lambda self, min=None, max=None: torch.clamp(self, -1 if min is None else min, max),
    ),
    "beta is dropped": (
        OpCall(aten.addmm.default, (normal(5), normal(4, 6), normal(6, 5))),
        lambda self, one, two, *, beta=1, alpha=1: torch.addmm(self, one, two, alpha=alpha),
    ),
    "bool masks are added": (
        OpCall(aten.scaled_dot_product_attention.default, (normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))),
        lambda q, k, v, mask=None, p=0.0, causal=False, **more: F.scaled_dot_product_attention(
            q, k, v, None if mask is None else mask.to(q.dtype), p, causal, **more
        ),
    ),
    "eps is fixed": (
        OpCall(aten.layer_norm.default, (normal(4, 6), [6], normal(6), normal(6))),
        lambda x, shape, weight=None, bias=None, eps=1e-5, *rest: F.layer_norm(x, shape, weight, bias),
    ),
    "dims are turned the other way": (
        OpCall(aten.permute.default, (normal(2, 3, 4), [0, 2, 1])),
        lambda self, dims: self.permute(sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))),
    ),
    "a step is forgotten": (
        OpCall(aten.slice.Tensor, (normal(8, 12), 1, 0, 6)),
        lambda self, dim=0, start=None, end=None, step=1: aten.slice.Tensor(self, dim, start, end, 1),
    ),
    "negative padding is none": (
        OpCall(aten.constant_pad_nd.default, (normal(4, 6), [1, 1])),
        lambda self, pad, value=0: F.pad(self, [max(width, 0) for width in pad], value=value),
    ),
    "indices from the end are 0": (
        OpCall(aten.index.Tensor, (normal(8, 6), [torch.tensor([1, 2])])),
        lambda self, indices: aten.index.Tensor(
            self, [i if i is None or i.dtype == torch.bool else i.clamp(min=0) for i in indices]
        ),
    ),
    "a later index dim is the first": (
        OpCall(aten.index.Tensor, (normal(8, 6), [torch.tensor([1, 2])])),
        lambda self, indices: aten.index.Tensor(self, [i for i in indices if i is not None]),
    ),
    "writes do not add up": (
        OpCall(aten.index_put.default, (normal(8, 6), [torch.tensor([1, 2])], normal(2, 6))),
        lambda self, indices, values, accumulate=False: aten.index_put(self, indices, values),
    ),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_a_fault_about_an_argument_shows(name: str) -> None:
    call, apply = _FAULTS[name]
    assert not _differs(call, apply)
    assert any(_differs(variant.build(), apply) for variant in attribute_variants(call))


def _differs(made: OpCall, apply: Callable[..., object]) -> bool:
    """Bit for bit: a fault that does not bite returns the right result. One that raises shows, too."""
    if eager_or_none(made) is None:
        return False
    right = made.target(*made.args, **made.kwargs)
    try:
        got = apply(*made.args, **made.kwargs)
    except (RuntimeError, IndexError):
        return True
    assert isinstance(got, Tensor)
    return right.dtype != got.dtype or right.shape != got.shape or not torch.allclose(right, got, 0, 0, equal_nan=True)
