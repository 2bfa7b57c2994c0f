"""What a search found, as plain data: the ``place`` part of the JSON contract. It needs no torch."""

from __future__ import annotations

import msgspec


class Errors(msgspec.Struct, frozen=True):
    """``max_rel_error`` on the inputs that were searched with, and on those held out (None: not measured)."""

    search: float
    held_out: float | None


class Single(msgspec.Struct, frozen=True):
    """One backend with one option on everything it takes. ``error`` is None where it does not run, with ``reason``."""

    backend: str
    options: str
    latency_ms: float | None
    error: float | None
    within_budget: bool
    regions: int = 0
    device: str = ""
    reason: str = ""


class Best(msgspec.Struct, frozen=True):
    """The fastest single backend within the budget; ``source`` is PyTorch on the CPU, node by node."""

    backend: str
    options: str
    latency_ms: float
    error: float


class FoundRegion(msgspec.Struct, frozen=True):
    """A region of the winner. ``latency_ms`` and ``error`` are what it costs and adds by itself, as measured."""

    nodes: tuple[str, ...]
    backend: str
    options: str
    device: str
    latency_ms: float
    error: float


class PlaceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search. Times are of one run, in milliseconds; None where there was no time to measure.

    ``gap`` is how far the exact stage's cost may be above the best one, as a part of it, in its own model of costs.
    ``candidates`` counts those that were considered, ``measured`` what was run and not found in the cost store,
    ``refused`` and ``not_measured`` the candidates that were left out. ``ended`` is ``done``, ``time`` or
    ``interrupted``.
    """

    budget: float
    latency_ms: float | None
    error: Errors
    best_single: Best | None
    speedup: float | None
    singles: tuple[Single, ...]
    regions: tuple[FoundRegion, ...]
    gap: float
    candidates: int
    measured: int
    refused: int = 0
    not_measured: int = 0
    ended: str = "done"
