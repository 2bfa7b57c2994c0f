"""What repro.json holds: everything about a bundle that is no tensor. Plain data, free of torch.

Field names are a contract: only ever extended.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from tapestry.numerics.judgement import Metrics

FORMAT = "tapestry-repro"
VERSION = 1
#: The file of a bundle that makes it one.
RECORD = "repro.json"
SUITE = "suite"


class DeviceRecord(msgspec.Struct, frozen=True):
    """The device that gave the wrong result; its name is without a token."""

    name: str
    kind: str
    description: str
    fingerprint: str


class Size(msgspec.Struct, frozen=True):
    """How large a subject is: elements of all inputs, of the constants among them, and calls."""

    elements: int
    constants: int
    calls: int


class Errors(msgspec.Struct, frozen=True):
    """The largest errors, as of Metrics; None for one that is infinite or no number."""

    max_ulp: float | None
    max_rel: float | None
    max_abs: float | None
    nmse: float | None

    @staticmethod
    def of(metrics: Metrics) -> Errors:
        """The errors of a judgement."""
        values = (metrics.max_ulp, metrics.max_rel, metrics.max_abs, metrics.nmse)
        return Errors(*(value if isfinite(value) else None for value in values))


class ReproRecord(msgspec.Struct, frozen=True):
    """One bundle. ``reductions``: what was made smaller, and how often it helped. ``runs`` on the device."""

    op: str
    case: str
    variant: str
    source: str
    device: DeviceRecord
    backend: str
    options: str
    fingerprint: str
    verdict: str
    way: str
    reason: str
    errors: Errors
    judged_by: str
    before: Size
    after: Size
    runs: int
    seconds: float
    steady: bool
    reductions: dict[str, int]
    versions: dict[str, str]
    format: str = FORMAT
    version: int = VERSION
