"""Variants of other shapes: every class is made, eager takes them, and faults of size and dtype show on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.usual_calls import CALLS, aten, normal, whole
from tapestry.suite.variants.call import Kind, OpCall
from tapestry.suite.variants.quiet import eager_or_none
from tapestry.suite.variants.shape_links import links, with_sizes
from tapestry.suite.variants.shape_trial import elements
from tapestry.suite.variants.shapes import shape_variants

#: What the tests run eager on: the larger ones differ in nothing but size.
_SMALL = 1 << 16


def _id(call: OpCall) -> str:
    return str(call.target)


@pytest.mark.parametrize("call", CALLS, ids=_id)
def test_every_call_has_variants_that_eager_takes(call: OpCall) -> None:
    variants = list(shape_variants(call))
    assert len({variant.name for variant in variants}) == len(variants)
    assert all(variant.kind == Kind.SHAPE for variant in variants)
    built = [variant.build() for variant in variants[:30]]
    small = [made for made in built if elements(made) <= _SMALL]
    taken = [made for made in small if eager_or_none(made) is not None]
    assert len(taken) >= len(small) * 2 / 3  # at most a third refused
    if call.tensors:
        assert len(taken) >= 5


@pytest.mark.parametrize("call", [call for call in CALLS if call.tensors], ids=_id)
def test_a_variant_is_the_same_every_time_and_the_call_is_not_written(call: OpCall) -> None:
    before = [tensor.clone() for tensor in call.tensors]
    first, second = list(shape_variants(call))[:6], list(shape_variants(call))[:6]
    assert [variant.name for variant in first] == [variant.name for variant in second]
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.build().tensors, other.build().tensors, strict=True):
            assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    assert all(torch.equal(old, tensor) for old, tensor in zip(before, call.tensors, strict=True))


def test_the_features_of_a_linear_layer_change_together() -> None:
    call = OpCall(aten.linear.default, (normal(6, 6), normal(6, 6), normal(6)))
    features = links(call)[1]
    made = with_sizes(call, {features: 9}, "test")
    assert [tuple(tensor.shape) for tensor in made.tensors] == [(6, 9), (6, 9), (6,)]


def test_channels_per_group_follow_the_channels() -> None:
    call = OpCall(aten.conv2d.default, (normal(1, 8, 6, 6), normal(8, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], 4))
    per_group = next(link for link in links(call) if link.size == 2)
    made = with_sizes(call, {per_group: 3}, "test")
    assert [tuple(tensor.shape) for tensor in made.tensors] == [(1, 12, 6, 6), (8, 3, 3, 3)]


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_parameter_keeps_a_number_for_each_channel_where_eager_would_read_past_its_end(place: int) -> None:
    call = OpCall(
        aten._native_batch_norm_legit_no_training.default,  # noqa: SLF001
        (normal(2, 16, 5, 5), normal(16), normal(16), normal(16), normal(16).abs() + 1, 0.1, 1e-5),
    )
    made = [
        variant.build() for variant in shape_variants(call) if variant.name.startswith((f"shape {place}", "shape 0"))
    ]
    channels = [call.tensors[0].shape[1] if call.tensors[0].dim() > 1 else 0 for call in made]
    assert all(variant.tensors[place].shape == (count,) for variant, count in zip(made, channels, strict=True))


def test_no_rank_leaves_a_norm_with_parameters_of_other_channels() -> None:
    """Eager's batch_norm does not look; its definition gives a result of another shape."""
    parameters = [normal(6).abs() + 0.5 for _ in range(4)]
    target = aten._native_batch_norm_legit_no_training.default  # noqa: SLF001
    call = OpCall(target, (normal(2, 6, 4, 4), *parameters, 0.1, 1e-5))
    found = [made for made in (variant.build() for variant in shape_variants(call)) if made.tensors[0].dim() != 4]
    assert found
    for made in found:
        if eager_or_none(made) is not None:
            assert {tensor.numel() for tensor in made.tensors[1:]} == {made.tensors[0].shape[1]}


def test_a_parameter_that_broadcasts_may_be_smaller() -> None:
    call = OpCall(aten.addcmul.default, (normal(4, 8), normal(4, 8), normal(8)))
    assert any(v.name == "shape 2 0-d" for v in shape_variants(call))
    scaled = OpCall(aten.mul.Tensor, (normal(4, 8), normal(8)))
    assert any(v.name == "shape 1 0-d" for v in shape_variants(scaled))
    smooth = OpCall(aten.lerp.Tensor, (normal(4, 8), normal(4, 8), normal(8)))  # its third argument is a weight
    assert any(v.name == "shape 2 0-d" for v in shape_variants(smooth))


def test_keys_and_values_are_as_long_as_each_other() -> None:
    # eager takes other lengths, and reads past the end
    call = OpCall(
        aten.scaled_dot_product_attention.default, (normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))
    )
    for variant in shape_variants(call):
        made = variant.build()
        if elements(made) <= _SMALL and min(tensor.dim() for tensor in made.tensors) >= 2:
            assert made.tensors[1].shape[-2] == made.tensors[2].shape[-2], variant.name


def test_indices_stay_inside_a_smaller_table_and_reach_the_end_of_a_larger_one() -> None:
    call = OpCall(aten.embedding.default, (normal(9, 4), whole(0, 9, 5)))
    made = {variant.name: variant for variant in shape_variants(call)}
    assert int(made["shape 0.0=1"].build().tensors[1].max()) == 0
    assert int(made["shape 0.0=65537"].build().tensors[1].max()) == 65_536


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool]),
    target=st.sampled_from(
        [aten.relu.default, aten.neg.default, aten.mul.Tensor, aten.sum.default, aten.argmax.default]
    ),
)
def test_no_rank_or_dtype_makes_it_raise(shape: list[int], dtype: torch.dtype, target: object) -> None:
    tensor = torch.ones(shape).to(dtype)
    call = OpCall(target, (tensor, tensor) if target == aten.mul.Tensor else (tensor,))  # pyright: ignore
    for variant in list(shape_variants(call))[:12]:
        assert isinstance(variant.build(), OpCall)


def _fault(
    right: Callable[..., Tensor], spoils: Callable[[Tensor, tuple[Tensor, ...]], Tensor]
) -> Callable[..., Tensor]:
    return lambda call: spoils(right(*call.args, **call.kwargs), call.tensors)


def _tail(result: Tensor, kept: int) -> Tensor:
    flat = result.clone().reshape(-1)
    flat[kept:] = 0
    return flat.reshape(result.shape)


_FAULTS: dict[str, tuple[OpCall, Callable[[Tensor, tuple[Tensor, ...]], Tensor]]] = {
    "a sum of nothing is not written": (
        OpCall(aten.sum.dim_IntList, (normal(4, 6), [1])),
        lambda right, given: right + 9 if given[0].numel() == 0 else right,
    ),
    "sums of integers stay in their dtype": (
        OpCall(aten.sum.dim_IntList, (normal(4, 6), [1])),
        lambda right, given: right if given[0].is_floating_point() else right.to(given[0].dtype),
    ),
    "rows over one dispatch are not computed": (
        OpCall(aten.mean.dim, (normal(4, 6), [1])),
        lambda right, given: _tail(right, 65_535),
    ),
    "elements past the last vector of 4 are not computed": (
        OpCall(aten.mul.Tensor, (normal(4, 8), normal(4, 8))),
        lambda right, given: _tail(right, right.numel() // 4 * 4),
    ),
    "indices are kept in f16": (
        OpCall(aten.argmax.default, (normal(4, 6), 1)),
        lambda right, given: right.half().long(),
    ),
    "the left operand does not broadcast": (
        OpCall(aten.mul.Tensor, (normal(4, 8), normal(4, 8))),
        lambda right, given: right * 0 if given[0].dim() < right.dim() else right,
    ),
    "a vector becomes a row": (
        OpCall(aten.linear.default, (normal(4, 6), normal(5, 6), normal(5))),
        lambda right, given: right[None] if given[0].dim() == 1 else right,
    ),
    "fewer than four channels": (
        OpCall(aten.conv2d.default, (normal(1, 4, 8, 8), normal(6, 4, 3, 3), normal(6))),
        lambda right, given: right * 0 if given[1].shape[1] < 4 else right,
    ),
    "a third of a list is forgotten": (
        OpCall(aten.cat.default, ([normal(2, 3), normal(4, 3)],)),
        lambda right, given: right * 0 if len(given) > 2 else right,
    ),
    "an empty part is not passed over": (
        OpCall(aten.cat.default, ([normal(2, 3), normal(4, 3)],)),
        lambda right, given: right + 1 if any(not part.numel() for part in given) else right,
    ),
    "operands of two dtypes take the first": (
        OpCall(aten.add.Tensor, (normal(4, 6), normal(4, 6))),
        lambda right, given: right.to(given[0].dtype),
    ),
    "a table of more than 16 bits": (
        OpCall(aten.embedding.default, (normal(9, 4), whole(0, 9, 5))),
        lambda right, given: given[0][given[1] & 0xFFFF],
    ),
}


@pytest.mark.parametrize("name", _FAULTS)
def test_a_fault_of_size_or_dtype_shows(name: str) -> None:
    call, spoils = _FAULTS[name]
    apply = _fault(call.target, spoils)
    assert torch.equal(apply(call), call.target(*call.args, **call.kwargs))
    assert any(_differs(variant.build(), apply) for variant in shape_variants(call) if "many" not in variant.name)


def _differs(made: OpCall, apply: Callable[[OpCall], Tensor]) -> bool:
    """Bit for bit: a fault that does not bite returns the right result."""
    if eager_or_none(made) is None:
        return False
    right, got = made.target(*made.args, **made.kwargs), apply(made)
    return right.dtype != got.dtype or right.shape != got.shape or not torch.allclose(right, got, 0, 0, equal_nan=True)
