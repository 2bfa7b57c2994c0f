"""What a migration found: the plain data behind the table, the JSON and the report. Free of torch.

Field names are the JSON contract (docs/schema): only ever extended.
"""

from __future__ import annotations

import msgspec

from tapestry.profiling.result import Roofs
from tapestry.suite.verdicts import OperatorSummary


class Coverage(msgspec.Struct, frozen=True):
    """Fractions (0 to 1) of the program that ran on the target, and ``transfers``: values moved in the last call of an
    input set, when what stays on the target is there.

    Nodes count when the driver's launch log shows their region; ``flops`` and ``bytes`` weigh compute nodes.
    """

    nodes: float
    compute_nodes: float
    flops: float
    bytes: float
    transfers: int
    launches: int = 0
    compute_total: int = 0
    compute_on_target: int = 0
    #: Bytes that travel with the transfers, per run.
    transfer_bytes: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One cause that keeps nodes off the target, or from running there as they should.

    ``cause`` is ``replay`` (a case), ``program`` (wrong in the whole although its cases pass), ``merge`` (wrong only
    when compiled together; the nodes still run on the target) or ``kernel`` (a hand-written kernel is wrong; its
    nodes run with another backend, or have another finding). ``case`` names the case of the suite that shows it,
    ``backend`` whose verdict it is, ``repro`` the folder of its bundle; of a finding without a case they are empty.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    verdict: str
    cause: str
    reason: str
    repro: str | None = None
    case: str = ""
    backend: str = ""


class Latent(msgspec.Struct, frozen=True):
    """A failing variant that does not concern this model's values and shapes: it blocks nothing."""

    op: str
    variant: str
    verdict: str
    reason: str
    case: str = ""


class Blocked(msgspec.Struct, frozen=True):
    """A node that stays on the source."""

    node: str
    op: str
    source: str
    reason: str


class Step(msgspec.Struct, frozen=True):
    """One step: ``offload`` (more nodes), ``search`` (narrowing a bad step down) or ``merge`` (larger regions)."""

    kind: str
    nodes: int
    regions: int
    good: bool
    max_rel_error: float | None
    bound: float | None
    seconds: float
    resumed: bool
    reason: str = ""


class DriftPoint(msgspec.Struct, frozen=True):
    """How far a node's first result is from the oracle's, relative to its largest element: on the target, each operator
    a region of its own, and on the source. Values flow on from what each gave before.
    """

    node: str
    module: str
    target: float
    source: float


class ProgramSummary(msgspec.Struct, frozen=True):
    """Sizes of the program; ``state`` counts written buffers."""

    nodes: int
    compute_nodes: int
    state: int


class SuiteSummary(msgspec.Struct, frozen=True):
    """Sizes of the suite in bytes; ``dump_bytes`` is what recording every call would have taken."""

    cases: int
    variants: int
    bytes: int
    dump_bytes: int


class Check(msgspec.Struct, frozen=True):
    """The final whole-program check on all inputs. ``tokens`` is for language models."""

    max_rel_error: float
    max_abs_error: float
    cosine: float
    against_source: float
    source_error: float
    bound: float
    good: bool
    tokens: dict[str, int] | None = None


class Attempt(msgspec.Struct, frozen=True):
    """What came of trying a node's operator with a backend of the target.

    ``how``: ``cases`` (alone, on ``cases`` of the suite, of which ``case`` is the one that ``verdict`` and ``reason``
    are of, and ``max_rel`` the worst error against the oracle), or the cause of a finding (``program``, ``merge``,
    ``kernel``).
    """

    backend: str
    how: str
    verdict: str
    cases: int = 0
    max_rel: float | None = None
    reason: str = ""
    case: str = ""


class NodeRecord(msgspec.Struct, frozen=True):
    """Where one node ended: ``place`` is ``target``, ``source`` or ``folded``; ``region`` its tag on the target.

    ``tried`` is its history, ``why`` the reason that it stays on the source, where it does.
    """

    node: str
    op: str
    module: str
    source: str
    place: str
    region: str
    compute: bool
    verdict: str
    max_rel: float | None
    reads: tuple[str, ...]
    tried: tuple[Attempt, ...] = ()
    why: str = ""


class MissingReason(msgspec.Struct, frozen=True):
    """Why so many nodes of an operator stay on the source."""

    reason: str
    nodes: int


class MissingOperator(msgspec.Struct, frozen=True):
    """An operator (an origin's) that stays on the source, and what having it on the target would bring, taken alone.

    Shares are of all compute nodes and of their FLOPs. ``transfers``, ``transfer_bytes`` and ``transfer_seconds`` would
    vanish from each run, or are negative where there would be more. Which seconds are measured and which estimated, and
    how, is in ``Mixed``; ``gain_seconds`` is what a kernel at the roof would save each run, ``likely_gain_seconds`` one
    as near to it as what runs on the target. They are None for what could not be measured, and for operators that can
    never move (not ``movable``).
    """

    op: str
    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    reasons: tuple[MissingReason, ...]
    movable: bool
    compute_nodes: int
    compute_share: float
    flops: int
    flops_share: float
    source_seconds: float
    transfers: int
    transfer_bytes: int
    transfer_seconds: float | None
    roof_seconds: float | None
    target_seconds: float | None
    gain_seconds: float | None
    likely_gain_seconds: float | None


class Mixed(msgspec.Struct, frozen=True):
    """What a run of the final placement costs: its transfers, its nodes on the source, its regions on the target.

    ``roof_share`` is the regions' time at the roof by their time. Seconds are None for what could not be measured, or
    was not needed since nothing stays on the source; ``note`` says what could not and why. ``measured`` and
    ``estimated`` tell of each field how its number came about (``operators`` are those of ``missing``).
    """

    transfers: int
    transfer_bytes: int
    transfer_seconds: float | None
    source_nodes: int
    source_seconds: float
    target_seconds: float | None
    roof_share: float | None
    roofs: Roofs | None
    measured: dict[str, str]
    estimated: dict[str, str]
    note: str = ""


class MigrationResult(msgspec.Struct, frozen=True):
    """Everything that is reported of a migration."""

    target: str
    backend: str
    program: ProgramSummary
    suite: SuiteSummary
    coverage: Coverage
    check: Check
    findings: tuple[Finding, ...]
    blocked: tuple[Blocked, ...]
    steps: tuple[Step, ...]
    program_runs: int
    operators: tuple[OperatorSummary, ...]
    nodes: tuple[NodeRecord, ...]
    latent: tuple[Latent, ...] = ()
    #: In program order; empty where not all that moves was ever right at once.
    drift: tuple[DriftPoint, ...] = ()
    #: The most program runs that finding this many causes should take.
    runs_allowed: int = 0
    #: The operators that stay on the source, the largest gain first.
    missing: tuple[MissingOperator, ...] = ()
    #: What the mixture costs a run; None where the whole program is not right.
    mixed: Mixed | None = None

    @property
    def good(self) -> bool:
        """Whether the whole program is right and nothing was found."""
        return self.check.good and not self.findings
