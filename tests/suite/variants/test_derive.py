"""What every variant keeps, whatever the call: properties over operators, dtypes, ranks and layouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.derive import Budget, Source, derive, make
from tapestry.suite.variants.layout import layout_variants
from tapestry.suite.variants.values import value_variants

aten = torch.ops.aten
_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16,
           torch.int8, torch.uint8, torch.bool, torch.complex64]  # fmt: skip
_UNARY = [aten.abs.default, aten.clone.default, aten.sum.default, aten.relu.default, aten.isnan.default]
_BINARY = [aten.add.Tensor, aten.mul.Tensor, aten.eq.Tensor, aten.minimum.default, aten.where.self]
_ALONG = [aten.softmax.int, aten.amax.default, aten.argmax.default, aten.cumsum.default, aten.sort.default]

_shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=5).map(tuple)
_quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    source = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    return source > 0 if dtype == torch.bool else source.abs().to(dtype) if dtype == torch.uint8 else source.to(dtype)


@st.composite
def _tensors(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Dense, offset, transposed, expanded or with gaps."""
    tensor = _filled(shape, dtype, draw(st.integers(0, 5)))
    how = draw(st.sampled_from(["dense", "offset", "turned", "expanded", "gaps"]))
    if how == "offset":
        room = torch.zeros(tensor.numel() + 3, dtype=dtype)
        return room[3:].view(shape).copy_(tensor)
    if how == "turned" and len(shape) >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "expanded" and shape:
        return tensor.narrow(0, 0, min(1, shape[0])).expand(shape)
    if how == "gaps" and shape:
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor


@st.composite
def _calls(draw: st.DrawFn) -> OpCall:
    shape, dtype = draw(_shapes), draw(st.sampled_from(_DTYPES))
    family = draw(st.sampled_from(["unary", "binary", "along"]))
    tensor = draw(_tensors(shape, dtype))
    if family == "unary":
        return OpCall(draw(st.sampled_from(_UNARY)), (tensor,))
    if family == "binary":
        target = draw(st.sampled_from(_BINARY))
        other = draw(_tensors(draw(st.sampled_from([shape, shape[1:], ()])), dtype))
        mask = (draw(_tensors(shape, torch.bool)),) if target is aten.where.self else ()
        return OpCall(target, (*mask, tensor, other), {}, frozenset(draw(st.sets(st.integers(0, 1)))))
    dim = draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    target = draw(st.sampled_from(_ALONG))
    return OpCall(target, (tensor, [dim] if target is aten.amax.default else dim))


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


@_quick
@given(_calls())
def test_value_variants_keep_how_every_tensor_lies(call: OpCall) -> None:
    state = torch.get_rng_state()
    names: set[str] = set()
    before = [tensor.clone() for tensor in call.tensors]
    for variant in value_variants(call):
        assert variant.kind in (Kind.VALUES, Kind.NONFINITE)
        assert variant.name not in names
        names.add(variant.name)
        made = variant.build()
        assert (made.target, made.constants) == (call.target, call.constants)
        for old, new in zip(call.tensors, made.tensors, strict=True):
            assert (new.dtype, new.shape, new.stride()) == (old.dtype, old.shape, old.stride())
            assert new.storage_offset() == old.storage_offset()
            if variant.kind == Kind.VALUES and new is not old:
                assert bool(torch.isfinite(new).all())
    assert all(_equal(old, tensor) for old, tensor in zip(before, call.tensors, strict=True))
    assert torch.equal(state, torch.get_rng_state())


@_quick
@given(_calls())
def test_layout_variants_keep_the_values_unless_they_repeat_them(call: OpCall) -> None:
    for variant in layout_variants(call):
        made = variant.build()
        for old, new in zip(call.tensors, made.tensors, strict=True):
            assert (new.dtype, new.shape) == (old.dtype, old.shape)
            if not any(word in variant.name for word in ("expanded", "one-element")):
                assert _equal(old, new)
            elif new is not old and new.numel():
                assert 0 in new.stride()


@_quick
@given(_calls())
def test_derived_calls_run_differ_and_come_back_by_name(call: OpCall) -> None:
    found = list(derive(call, Budget(cases=12), {Kind.VALUES, Kind.NONFINITE, Kind.LAYOUT}))
    assert len(found) <= 12
    for variant, made in found:
        made.target(*made.args, **made.kwargs)
        again = make(call, variant.name)
        pairs = list(zip(made.tensors, again.tensors, strict=True))
        assert all(_equal(one, other) and one.stride() == other.stride() for one, other in pairs)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex128, torch.uint16, torch.uint64]
)
def test_rare_dtypes_are_filled_too(dtype: torch.dtype) -> None:
    call = OpCall(aten.clone.default, (torch.ones(2, 3).to(dtype),))
    assert len(list(derive(call, kinds={Kind.VALUES}))) >= 2


def _linear() -> OpCall:
    return OpCall(
        aten.linear.default, (_filled((4, 8), torch.float32, 0), _filled((6, 8), torch.float32, 1)), {}, frozenset({1})
    )


def test_a_budget_of_cases_covers_every_kind() -> None:
    kinds = {variant.kind for variant, _ in derive(_linear(), Budget(cases=8))}
    assert kinds == set(Kind)


def test_a_budget_of_bytes_is_kept() -> None:
    call = _linear()
    own = {id(tensor) for tensor in call.tensors}
    made = [made for _, made in derive(call, Budget(cases=1000, bytes=4096))]
    new = [tensor for entry in made for tensor in entry.tensors if id(tensor) not in own]
    assert 0 < sum(tensor.untyped_storage().nbytes() for tensor in new) <= 4096


def test_no_time_means_no_variants() -> None:
    assert list(derive(_linear(), Budget(seconds=-1.0))) == []


def test_an_operand_given_twice_changes_at_both_places() -> None:
    tensor = torch.ones(2, 3)
    for _, made in derive(OpCall(aten.mul.Tensor, (tensor, tensor)), kinds={Kind.VALUES, Kind.LAYOUT}):
        first, second = made.tensors
        assert first is second


def test_what_eager_refuses_is_dropped() -> None:
    def refused(call: OpCall):
        yield Variant("refused", Kind.SHAPE, 0, lambda: OpCall(aten.mm.default, (torch.ones(2, 3), torch.ones(2, 3))))

    assert list(derive(_linear(), sources=(Source(frozenset({Kind.SHAPE}), refused),))) == []


def test_a_result_of_another_shape_is_no_variant_of_values() -> None:
    call = OpCall(aten.nonzero.default, (torch.tensor([0.0, 1.0, 2.0]),))
    want = call.target(*call.args).shape
    found = list(derive(call, kinds={Kind.VALUES, Kind.NONFINITE, Kind.SHAPE}))
    assert found
    for variant, made in found:
        if variant.kind != Kind.SHAPE:
            assert made.target(*made.args).shape == want


def test_an_unknown_name_is_said_to_be_one() -> None:
    with pytest.raises(LookupError, match="no variant 'values:self:nothing'"):
        make(_linear(), "values:self:nothing")


@pytest.mark.parametrize(
    ("call", "low", "high"),
    [
        (OpCall(aten.embedding.default, (torch.ones(7, 2), torch.tensor([[1, 2], [3, 4]]))), 0, 6),
        (OpCall(aten.index.Tensor, (torch.ones(5, 2), [torch.tensor([1, 2, 3])])), -5, 4),
        (OpCall(aten.gather.default, (torch.ones(3, 5), 1, torch.zeros(3, 2, dtype=torch.int64))), 0, 4),
    ],
)
def test_indices_reach_both_ends_and_stay_legal(call: OpCall, low: int, high: int) -> None:
    place = len(call.tensors) - 1
    seen = [made.tensors[place] for variant, made in derive(call, kinds={Kind.VALUES}) if "ind" in variant.name]
    values = torch.cat([tensor.reshape(-1) for tensor in seen])
    assert (int(values.min()), int(values.max())) == (low, high)


def test_written_places_stay_distinct() -> None:
    index = torch.tensor([[0, 1], [2, 0], [1, 2]])
    call = OpCall(aten.scatter.src, (torch.zeros(3, 4), 1, index, torch.ones(3, 2)))
    changed = [made.tensors[1] for _, made in derive(call, kinds={Kind.VALUES}) if made.tensors[1] is not index]
    assert changed
    assert all(row.unique().numel() == row.numel() for tensor in changed for row in tensor)


def test_gaps_of_a_layout_hold_what_would_show() -> None:
    call = OpCall(aten.relu.default, (torch.ones(2, 3),))
    made = make(call, "layout:self:every-second-column").tensors[0]
    storage = made.as_strided((12,), (1,), 0)
    assert torch.equal(storage[::2][:6], torch.ones(6))
    assert bool(storage[1::2].isnan().all())


def test_variances_are_never_negative() -> None:
    norm = getattr(aten, "_native_batch_norm_legit_no_training").default  # noqa: B009
    ones = torch.ones(4)
    call = OpCall(norm, (torch.ones(2, 4, 3), ones.clone(), ones.clone(), ones.clone(), ones.clone(), 0.1, 1e-5))
    held = [made.tensors[4] for _, made in derive(call, Budget(cases=500), {Kind.VALUES})]
    assert any(bool((variance == 0).any()) for variance in held)
    assert all(bool((variance >= 0).all()) for variance in held)


def test_no_view_is_larger_than_what_a_device_can_write_out() -> None:
    call = OpCall(aten.expand.default, (torch.ones(4, 1), [4, 4]))
    made = [variant for _, variant in derive(call, Budget(cases=200))]
    results = [variant.target(*variant.args, **variant.kwargs) for variant in made]
    assert results
    assert max(result.numel() * result.element_size() for result in results) <= 256 << 20


def test_boundaries_may_be_truth_values() -> None:
    call = OpCall(aten.bucketize.Tensor, (torch.ones(4, 3), torch.tensor([False, True])))
    assert list(derive(call, Budget(cases=20)))


@pytest.mark.parametrize(
    ("target", "args", "made"),
    [
        (aten.mean.default, (torch.ones(3, 5),), True),
        (aten.sum.dim_IntList, (torch.ones(3, 5), [1]), True),
        (aten.sum.default, (torch.ones(3, 5, dtype=torch.int64),), False),
        (aten.relu.default, (torch.ones(3, 5),), False),
        (aten._softmax.default, (torch.ones(3, 5), 1, False), False),  # noqa: SLF001
    ],
    ids=str,
)
def test_millions_of_equal_numbers_are_added_up(target: OpOverload, args: tuple[object, ...], made: bool) -> None:
    """Among the first 64 variants, and only where a dim is added up."""
    found = [call for entry, call in derive(OpCall(target, args), Budget(64)) if entry.name.endswith("4194307 equal")]
    assert [call.tensors[0].unique().tolist() for call in found] == ([[pytest.approx(0.1)]] if made else [])
    assert all(call.tensors[0].numel() == 4_194_307 for call in found)
