"""What reads as one cause and what does not."""

from __future__ import annotations

from msgspec import structs

from tapestry.migration.result import Finding
from tapestry.report.causes import CauseGroup, group_findings

CONV = "aten.conv2d.default"


def finding(number: int, reason: str, op: str = CONV, verdict: str = "fail", cause: str = "replay") -> Finding:
    return Finding((f"node_{number}",), (op,), (f"model.py:{number}",), verdict, cause, reason, repro=f"repro/{number}")


def test_ten_places_that_differ_in_numbers_are_one_cause() -> None:
    many = [finding(place, f"element [0, {place}] is {place / 7:.6g}, expected 1e-0{place}") for place in range(10)]
    many[4] = structs.replace(many[4], nodes=("node_4", "node_40"))
    (group,) = group_findings(many)
    (view,) = group.findings
    assert (view.ops, view.verdict, view.cause, view.reason) == ((CONV,), "fail", "replay", many[4].reason)
    assert len(view.nodes) == 11
    assert len(view.others) == 9
    assert len(view.sources) == len(view.repros) == 10


def test_another_operator_verdict_wording_or_cause_is_another() -> None:
    first = finding(1, "element 3 is 1, expected 2")
    others = [
        finding(2, "element 3 is 1, expected 2", op="aten.gelu.default"),
        finding(3, "element 3 is 1, expected 2", verdict="error"),
        finding(4, "NaN in 3 places"),
        finding(5, "element 3 is 1, expected 2", cause="program"),
    ]
    groups: tuple[CauseGroup, ...] = group_findings([first, *others])
    assert sum(len(group.findings) for group in groups) == 5
    assert [view.number for group in groups for view in group.findings] == [1, 2, 3, 4, 5]


def test_equal_operators_in_another_order_are_the_same() -> None:
    one, other = (structs.replace(finding(1, "x"), ops=ops) for ops in (("a", "b"), ("b", "a", "b")))
    (group,) = group_findings([one, other])
    assert [view.ops for view in group.findings] == [("a", "b")]
