"""A migration that is killed after, or while, any answer is written goes on from there and repeats no finished work."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from support.faulty_backend import Fault
from support.journalled import (
    CountingDevice,
    Ended,
    Kernelled,
    Killed,
    Small,
    Subject,
    comparable,
    killed_at,
    migrated,
    subject,
)

FAULTS = (Fault("wrong", "aten.gelu.default"), Fault("wrong", "aten.layer_norm.default", after="aten.add.Tensor"))


@cache
def small() -> Subject:
    return subject(Small())


def undisturbed(folder: Path) -> tuple[Ended, Kernelled]:
    backend = Kernelled(*FAULTS)
    return migrated(small(), backend, folder / "journal", cache=folder / "cache"), backend


def resumed(folder: Path, count: int, within: bool) -> tuple[Ended, list[tuple[str, str]], int, int]:
    """Killed at the ``count``-th answer, then run to the end: how that was, all keys, calls, compilations."""
    first, second = Kernelled(*FAULTS), Kernelled(*FAULTS)
    device = CountingDevice()
    with pytest.raises(Killed), killed_at(count, within) as keys:
        migrated(small(), first, folder / "journal", device, folder / "cache")
    assert len(keys) == count - within
    ended = migrated(small(), second, folder / "journal", cache=folder / "cache")
    return ended, [*keys, *ended.log.keys], device.calls + ended.calls, first.compiled + second.compiled


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True], ids=["after", "within"])
def test_killed_at_any_answer(tmp_path: Path, within: bool) -> None:
    want, backend = undisturbed(tmp_path / "whole")
    answers = len(want.log.keys)
    kinds = Counter(kind for kind, _ in want.log.keys)
    assert kinds["case"] >= 8
    assert kinds["step"] >= 8
    assert len(want.result.findings) == 2
    # Every second one, and the ends: the other ones are met by the other parameter.
    for count in sorted({1, answers, *range(1 + within, answers + 1, 2)}):
        ended, keys, calls, compiled = resumed(tmp_path / f"{count}", count, within)
        assert comparable(ended.result) == comparable(want.result), count
        # No answer is worked out twice, but for the one whose record is only half there.
        assert Counter(keys) == Counter(want.log.keys), count
        assert compiled == backend.compiled, count
        if not within:
            assert calls == want.calls, count
