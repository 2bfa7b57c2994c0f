"""What a migration found: the plain data behind the table, the JSON and the report. Free of torch.

Field names are the JSON contract (docs/schema): only ever extended.
"""

from __future__ import annotations

import msgspec

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


class NodeRecord(msgspec.Struct, frozen=True):
    """Where one node ended: ``place`` is ``target``, ``source`` or ``folded``; ``region`` its tag on the target."""

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

    @property
    def good(self) -> bool:
        """Whether the whole program is right and nothing was found."""
        return self.check.good and not self.findings
