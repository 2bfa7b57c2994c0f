"""What is run again when something changes: the cases and steps that depend on it, exactly."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import tapestry
from support.faulty_backend import Fault
from support.journalled import CountingDevice, Kernelled, Small, Subject, comparable, migrated, subject
from tapestry.backends.eager import Eager
from tapestry.suite.case import Suite


@cache
def small() -> Subject:
    return subject(Small())


def of_op(suite: Suite, *ops: str) -> list[str]:
    """The cases of operators, in the suite's order."""
    return [case.id for case in suite.cases if case.op in {f"aten.{op}" for op in ops}]


def nodes_of(of: Subject, op: str) -> set[str]:
    return {node.id for node in of.program.nodes if node.op == op}


def holds(regions: tuple[tuple[str, ...], ...], nodes: set[str]) -> bool:
    return any(node in nodes for region in regions for node in region)


def test_nothing_is_run_again_when_nothing_changed(tmp_path: Path) -> None:
    first = migrated(small(), Kernelled(), tmp_path)
    second = migrated(small(), Kernelled(), tmp_path)
    assert first.log.keys
    assert (second.log.cases, second.log.ran) == ([], [])
    assert comparable(second.result) == comparable(first.result)


def test_a_changed_kernel(tmp_path: Path) -> None:
    """Its cases, and the steps in which its operator is on the target; the steps before it moved are not."""
    first = migrated(small(), Kernelled(), tmp_path)
    second = migrated(small(), Kernelled(gelu="2"), tmp_path)
    assert second.log.cases == of_op(small().suite, "gelu.default")
    gelu = nodes_of(small(), "aten.gelu.default")
    stale = [regions for regions, _ in first.log.steps if holds(regions, gelu)]
    assert second.log.ran == stale
    assert 0 < len(stale) < len(first.log.steps)
    assert comparable(second.result) == comparable(first.result)
    third = migrated(small(), Kernelled(), tmp_path)
    assert (third.log.cases, third.log.ran) == ([], []), "the old kernel's answers are still there"


def test_a_kernel_that_breaks_and_is_mended(tmp_path: Path) -> None:
    first = migrated(small(), Kernelled(), tmp_path)
    broken = migrated(small(), Kernelled(Fault("wrong", "aten.gelu.default"), release="1"), tmp_path)
    (finding,) = broken.result.findings
    assert finding.ops == ("aten.gelu.default",)
    mended = migrated(small(), Kernelled(), tmp_path)
    assert (mended.log.cases, mended.log.ran) == ([], [])
    assert comparable(mended.result) == comparable(first.result)


def test_another_driver(tmp_path: Path) -> None:
    """Every case and every step, and nothing of them once the old driver is back."""
    first = migrated(small(), Kernelled(), tmp_path, CountingDevice("driver 1"))
    second = migrated(small(), Kernelled(), tmp_path, CountingDevice("driver 2"))
    assert second.log.cases == first.log.cases == [case.id for case in small().suite.cases]
    assert second.log.ran == first.log.ran == [regions for regions, _ in first.log.steps]
    third = migrated(small(), Kernelled(), tmp_path, CountingDevice("driver 1"))
    assert (third.log.cases, third.log.ran) == ([], [])


class Second(Eager):
    """Takes what the first backend of a list does not; ``release`` is its version."""

    def __init__(self, release: str) -> None:
        super().__init__()
        self.release = release

    def fingerprint(self) -> str:
        return f"{super().fingerprint()} {self.release}"


def test_another_version_of_one_of_two_backends(tmp_path: Path) -> None:
    """The cases that it decides, and the steps in which it has a region; those of the other one stay."""
    refused = [Fault("unsupported", f"aten.{op}.default") for op in ("gelu", "tanh")]
    first = migrated(small(), [Kernelled(*refused), Second("1")], tmp_path)
    second = migrated(small(), [Kernelled(*refused), Second("2")], tmp_path)
    assert second.log.cases == of_op(small().suite, "gelu.default", "tanh.default")
    own = nodes_of(small(), "aten.gelu.default") | nodes_of(small(), "aten.tanh.default")
    stale = [regions for regions, _ in first.log.steps if holds(regions, own)]
    assert second.log.ran == stale
    assert 0 < len(stale) < len(first.log.steps)
    third = migrated(small(), [Kernelled(*refused, release="2"), Second("2")], tmp_path)
    assert sorted(third.log.cases) == sorted(set(first.log.cases) - set(second.log.cases))
    assert third.log.ran == [regions for regions, _ in first.log.steps if holds(regions, everything() - own)]


def everything() -> set[str]:
    return {node.id for node in small().program.nodes}


def test_the_weights_of_one_layer(tmp_path: Path) -> None:
    """The cases that its values reach, and every step: in each of them the whole model runs with the new weights."""
    first = migrated(small(), Kernelled(), tmp_path)
    model = Small()
    with torch.no_grad():
        model.head.weight += 0.25
    changed = subject(model)
    assert changed.program.graph_hash == small().program.graph_hash
    second = migrated(changed, Kernelled(), tmp_path)
    (head,) = (case for case in changed.suite.cases if case.node == "head.linear")
    assert second.log.cases == [head.id, *of_op(changed.suite, "tanh.default", "softmax.int")]
    assert second.log.ran == [regions for regions, _ in first.log.steps]


def test_another_graph(tmp_path: Path) -> None:
    """The cases of the operators that are new, and every step."""
    first = migrated(small(), Kernelled(), tmp_path)
    changed = subject(Small(last=torch.log_softmax))
    assert changed.program.graph_hash != small().program.graph_hash
    second = migrated(changed, Kernelled(), tmp_path)
    assert second.log.cases == of_op(changed.suite, "log_softmax.int")
    assert second.log.ran == [regions for regions, _ in second.log.steps]
    third = migrated(small(), Kernelled(), tmp_path)
    assert (third.log.cases, third.log.ran) == ([], []), "the old model's answers are still there"
    assert comparable(third.result) == comparable(first.result)


@pytest.mark.slow
def test_another_graph_under_the_same_name_shares_a_journal(tmp_path: Path) -> None:
    """As ``tapestry.migrate`` keeps it; the device is a worker with this machine's own PyTorch."""
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    counts: list[int] = []
    for last in (torch.softmax, torch.log_softmax):
        with tapestry.migrate(Small(last).eval(), to="cpu", inputs=[(x,)], journal=tmp_path, variants=0) as moved:
            assert moved.result.good
            counts.append(moved.fresh.get("case", 0))
    assert counts[0] > counts[1] == 1


def test_a_damaged_answer_is_run_again_alone_and_said(tmp_path: Path) -> None:
    first = migrated(small(), Kernelled(), tmp_path)
    (path,) = tmp_path.glob("*.bin")
    data = bytearray(path.read_bytes())
    place = data.index(b"\xa4step", len(data) // 2) + 6  # in the key of a step
    data[place] ^= 0xFF
    path.write_bytes(data)
    second = migrated(small(), Kernelled(), tmp_path)
    assert second.log.cases == []
    assert len(second.log.ran) == 1
    assert comparable(second.result) == comparable(first.result)
