"""What an audit found. Plain data, free of torch; field names are the JSON contract, only ever extended."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class FaultResult(msgspec.Struct, frozen=True):
    """What became of one fault.

    ``killed``: some case's verdict on the broken platform's result was not pass. ``by``: that case and its variant.
    ``cases``: how many ran; ``differed``: in how many the fault changed the result at all; ``why``: for a survivor,
    why no case found it; for a killed one, what the case said.
    """

    fault: str
    fault_class: str
    op: str
    killed: bool
    by: str
    verdict: str
    cases: int
    differed: int
    why: str
    seconds: float


class ClassResult(msgspec.Struct, frozen=True):
    """The faults of one class together."""

    faults: int
    killed: int
    rate: float


class Survivor(msgspec.Struct, frozen=True):
    """A fault that no case found, and why."""

    fault: str
    op: str
    why: str


class AuditResult(msgspec.Struct, frozen=True):
    """All faults. ``rate`` is the share that was killed; ``variants`` says whether derived cases took part."""

    faults: int
    killed: int
    rate: float
    by_class: dict[str, ClassResult]
    survivors: tuple[Survivor, ...]
    variants: bool
    results: tuple[FaultResult, ...]

    @property
    def good(self) -> bool:
        """Whether every fault was found."""
        return self.killed == self.faults


def summarise(results: Iterable[FaultResult], variants: bool) -> AuditResult:
    """The results of all faults, counted by class."""
    entries = tuple(results)
    groups: dict[str, list[FaultResult]] = {}
    for entry in entries:
        groups.setdefault(entry.fault_class, []).append(entry)
    by_class = {name: _class_of(group) for name, group in sorted(groups.items())}
    total = _class_of(entries)
    survivors = tuple(Survivor(entry.fault, entry.op, entry.why) for entry in entries if not entry.killed)
    return AuditResult(total.faults, total.killed, total.rate, by_class, survivors, variants, entries)


def _class_of(entries: Iterable[FaultResult]) -> ClassResult:
    found = [entry.killed for entry in entries]
    return ClassResult(len(found), sum(found), sum(found) / len(found) if found else 1.0)
