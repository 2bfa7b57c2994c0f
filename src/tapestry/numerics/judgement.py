"""What judging a case yields: a verdict, its reason and the error metrics. Torch-free plain data (msgspec)."""

from __future__ import annotations

import msgspec

from tapestry.numerics.verdict import Verdict


class Metrics(msgspec.Struct, frozen=True):
    """Errors over the compared elements (defined, and finite in both) of all outputs together.

    ``max_ulp``: the largest |got - want| in units in the last place of the declared dtype at ``want``.
    ``max_rel``: the largest |got - want| / |want| where want is not 0. ``nmse``: sum |got - want|² / sum |want|².
    ``cosine``: of the outputs as one vector, 1.0 where both are zero. ``snr_db``: None where there is no error.
    """

    max_ulp: float = 0.0
    max_rel: float = 0.0
    max_abs: float = 0.0
    nmse: float = 0.0
    cosine: float = 1.0
    snr_db: float | None = None


class Judgement(msgspec.Struct, frozen=True):
    """The outcome for one case. ``judged_by`` names the tolerance classes that decided, joined by ``+``.

    ``imprecise``: right by what a device specification allows, though not by what a careful implementation reaches.
    ``reason`` is one sentence; on a fail it says what was expected, what was got, and where.
    """

    verdict: Verdict
    imprecise: bool
    reason: str
    metrics: Metrics
    judged_by: str
