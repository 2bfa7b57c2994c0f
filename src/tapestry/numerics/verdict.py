"""The verdicts of a case. Torch-free: reports, journals and the command line import it. It judges nothing itself."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What became of a case.

    ``undefined``: the reference itself is a convention there (NaN to integer, a fully masked softmax row), so
    nothing was left to compare. ``unsupported``, ``crashed`` and ``timeout`` come from devices, never from ``judge``.
    """

    PASS = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    UNDEFINED = "undefined"
