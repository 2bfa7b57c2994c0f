"""What makes a call valid: eager takes it, twice alike, within its tensors; and crashes stay outside."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tapestry.suite.schema import screening
from tapestry.suite.schema.samples import Proposal
from tapestry.suite.schema.screening import screened
from tapestry.suite.schema.trial import DRAWS, copies, copy_of, outcome, outcome_of_guess

aten = torch.ops.aten


@pytest.fixture(scope="module")
def odd() -> Iterator[Any]:
    """Operators with faults: one reads beyond its tensor, one writes there, one differs each time, one ends Python."""
    library = torch.library.Library("tapestry_odd", "FRAGMENT")
    library.define("behind(Tensor self) -> Tensor")
    library.define("before_(Tensor(a!) self) -> Tensor(a!)")
    library.define("counts(Tensor self) -> Tensor")
    library.define("dies(Tensor self, int n) -> Tensor")
    library.define("stops(Tensor self, int n) -> Tensor")
    calls = [0]

    def behind(self: torch.Tensor) -> torch.Tensor:
        return self.as_strided((self.numel() + 1,), (1,)).clone()

    def before(self: torch.Tensor) -> torch.Tensor:
        self.as_strided((1,), (1,), self.storage_offset() - 1).zero_()
        return self

    def counts(self: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return self + calls[0]

    def dies(self: torch.Tensor, n: int) -> torch.Tensor:
        if n == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.clone()

    def stops(self: torch.Tensor, n: int) -> torch.Tensor:
        if n == 1:
            signal.pause()
        return self.clone()

    for name, function in [("behind", behind), ("before_", before), ("counts", counts), ("dies", dies)]:
        library.impl(name, function, "CPU")
    library.impl("stops", stops, "CPU")
    yield torch.ops.tapestry_odd
    library._destroy()  # noqa: SLF001 - it has no public name


def test_a_good_call() -> None:
    assert outcome(aten.add.Tensor, (torch.ones(3), torch.ones(3)), {"alpha": 2}) == ""


def test_a_random_call_says_so() -> None:
    assert outcome(aten.rand_like.default, (torch.ones(3),), {}) == DRAWS


def test_a_refused_call() -> None:
    assert outcome(aten.mm.default, (torch.ones(3, 4), torch.ones(3, 4)), {}) is None


def test_arguments_that_cannot_be_stored() -> None:
    assert outcome(aten.relu.default, (torch.ones(3).to_sparse(),), {}) is None
    assert outcome(aten.rand_like.default, (torch.ones(3),), {"generator": torch.Generator()}) is None


def test_in_place_calls_leave_the_arguments() -> None:
    own = torch.ones(3)
    assert outcome(aten.add_.Tensor, (own, torch.ones(3)), {}) == ""
    assert torch.equal(own, torch.ones(3))


def test_reading_and_writing_beyond_a_tensor(odd: Any) -> None:
    assert outcome(odd.behind.default, (torch.ones(16),), {}) is None
    assert outcome(odd.before_.default, (torch.ones(16),), {}) is None


def test_results_that_differ_each_time(odd: Any) -> None:
    assert outcome(odd.counts.default, (torch.ones(16),), {}) is None


def test_a_guess_must_suit_the_definition_too() -> None:
    norm = torch.ops.aten._native_batch_norm_legit.no_stats  # noqa: SLF001 - an operator, not a member
    batch = (torch.randn(4, 6, 5, 5), torch.ones(6), torch.ones(6), True, 0.1, 1e-5)
    assert outcome_of_guess(norm, batch, {}) == ""
    wide = (batch[0], torch.ones(6, 4, 3, 3), *batch[2:])
    assert outcome_of_guess(norm, wide, {}) is None


@pytest.mark.skipif(sys.platform != "linux", reason="calls run apart on Linux only")
def test_a_crash_costs_only_its_call(odd: Any) -> None:
    proposals = [Proposal((torch.ones(3), n), {}, f"n = {n}") for n in (0, 1, 2, 1, 3)]
    calls = screened(odd.dies.default, [proposals], 5)
    assert [call.args[1] for call in calls] == [0, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="calls run apart on Linux only")
def test_a_call_that_never_ends_is_given_up(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "SECONDS", 0.5)
    calls = screened(odd.stops.default, [[Proposal((torch.ones(3), n), {}, "") for n in (0, 1, 2)]], 5)
    assert [call.args[1] for call in calls] == [0, 2]


def test_no_more_of_a_group_than_asked_for() -> None:
    groups = [[Proposal((torch.ones(3), torch.ones(3)), {}, str(group))] * 4 for group in range(2)]
    assert [call.source for call in screened(aten.add.Tensor, groups, 2)] == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(4.0).expand(3, 4),
        torch.arange(12.0)[1::3],
        torch.zeros(0, 3),
        torch.tensor(2.0),
    ],
)
def test_copies_keep_values_and_strides(tensor: torch.Tensor) -> None:
    copied = copy_of(tensor)
    assert torch.equal(copied, tensor)
    assert copied.stride() == tensor.stride()
    assert not tensor.numel() or copied.data_ptr() != tensor.data_ptr()


def test_a_tensor_that_occurs_twice_stays_one() -> None:
    one = torch.ones(2)
    first, (second, _) = copies([one, (one, 3)])
    assert first is second
    assert first is not one
