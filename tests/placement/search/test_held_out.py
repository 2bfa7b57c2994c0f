"""What is held out of a search, and inputs made up where there are few."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tapestry.placement.search.held_out import neighbour, split
from tapestry.program.inputs import CallArgs, InputSet, as_input_sets


@given(st.integers(4, 40))
def test_one_in_four_is_held_out_and_none_is_lost(count: int) -> None:
    inputs = as_input_sets([(torch.tensor(float(place)),) for place in range(count)])
    seen, held_out = split(inputs)
    assert len(held_out) == count // 4
    assert [entry for entry in inputs if entry not in held_out] == list(seen)
    assert set(map(id, seen)).isdisjoint(map(id, held_out))


@given(st.integers(1, 3))
def test_few_inputs_are_all_searched_with_and_have_neighbours(count: int) -> None:
    inputs = as_input_sets([(torch.arange(8.0) + place,) for place in range(count)])
    seen, held_out = split(inputs)
    assert seen == inputs
    assert len(held_out) == count
    for entry, other in zip(seen, held_out, strict=True):
        (x,), (y,) = entry.calls[0].args, other.calls[0].args
        assert isinstance(x, torch.Tensor)
        assert isinstance(y, torch.Tensor)
        assert not torch.equal(x, y)
        # A hundredth of the root mean square, at six standard deviations.
        assert float((x - y).abs().max()) <= 0.06 * float(x.square().mean().sqrt())


def test_neighbours_are_the_same_each_time() -> None:
    entry = InputSet((CallArgs((torch.randn(5),)),))
    (first,), (second,) = (neighbour(entry).calls[0].args for _ in range(2))
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert torch.equal(first, second)


def test_token_ids_stay_ones_that_were_seen_and_what_is_not_finite_stays() -> None:
    ids = torch.tensor([[5, 6, 7]])
    mask = torch.tensor([0.0, float("-inf")])
    call = CallArgs((ids, [mask]), {"flag": True, "length": torch.tensor(3)})
    (moved,) = neighbour(InputSet((call,))).calls
    new_ids, (new_mask,) = moved.args  # pyright: ignore[reportGeneralTypeIssues]
    assert new_ids.tolist() == [[7, 5, 6]]
    assert new_mask.isinf().tolist() == [False, True]
    assert moved.kwargs["flag"] is True
    assert moved.kwargs["length"] is call.kwargs["length"]
