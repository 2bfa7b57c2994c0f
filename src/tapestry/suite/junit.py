"""Replays as JUnit XML, which continuous integration reads: one suite per device, one test per case."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from tapestry.numerics.verdict import Verdict
from tapestry.suite.verdicts import BLOCKING, CaseResult, ReplayResult

#: What XML 1.0 has no place for.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = frozenset({Verdict.UNSUPPORTED, Verdict.UNDEFINED})


def as_junit(results: Iterable[ReplayResult]) -> bytes:
    """The results as UTF-8. Unsupported and undefined cases are skipped, with the reason."""
    root = ElementTree.Element("testsuites", name="tapestry replay")
    for result in results:
        entries = result.results
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_clean(f"{result.device} with {result.backend}"),
            tests=str(len(entries)),
            failures=str(sum(entry.verdict == Verdict.FAIL for entry in entries)),
            errors=str(sum(entry.verdict in BLOCKING - _SKIPPED - {Verdict.FAIL} for entry in entries)),
            skipped=str(sum(entry.verdict in _SKIPPED for entry in entries)),
            time=f"{sum(entry.seconds for entry in entries):.6f}",
        )
        for entry in entries:
            _add(suite, entry)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _add(suite: ElementTree.Element, entry: CaseResult) -> None:
    test = ElementTree.SubElement(
        suite, "testcase", classname=_clean(entry.op), name=_clean(entry.case), time=f"{entry.seconds:.6f}"
    )
    properties = ElementTree.SubElement(test, "properties")
    for name, value in (
        ("verdict", str(entry.verdict)), ("variant", entry.variant), ("latent", str(entry.latent).lower()),
        ("max_ulp", f"{entry.metrics.max_ulp:g}"), ("max_rel", f"{entry.metrics.max_rel:g}"),
    ):  # fmt: skip
        ElementTree.SubElement(properties, "property", name=name, value=_clean(value))
    if entry.verdict == Verdict.PASS:
        return
    tag = "skipped" if entry.verdict in _SKIPPED else "failure" if entry.verdict == Verdict.FAIL else "error"
    found = ElementTree.SubElement(test, tag, message=_clean(f"{entry.verdict}: {entry.reason}"))
    if tag != "skipped":
        found.set("type", str(entry.verdict))


def _clean(text: str) -> str:
    return _ILLEGAL.sub("�", text)
