"""What a profile found: the plain data behind the table, the JSON and the page. Free of torch.

Field names are the JSON contract (docs/schema): only ever extended. Seconds, bytes and floating-point operations.
"""

from __future__ import annotations

import msgspec


class Roofs(msgspec.Struct, frozen=True):
    """The most that a device reached in small benchmarks: bytes read and written by a copy, float32 operations.

    ``copy`` and ``arithmetic`` say which benchmark gave the number; ``copy_bytes`` is the size of the copied buffer.
    """

    bytes_per_second: float
    flops_per_second: float
    copy: str
    arithmetic: str
    copy_bytes: int

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic, not memory, is the roof."""
        return self.flops_per_second / self.bytes_per_second

    def seconds(self, flops: int, nbytes: int) -> float:
        """The least time for so much work (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009)."""
        return max(flops / self.flops_per_second, nbytes / self.bytes_per_second)


class Timing(msgspec.Struct, frozen=True):
    """Seconds of one run: the median, least and most of ``repeats`` measurements, each of ``batch`` runs in a row."""

    median: float
    low: float
    high: float
    repeats: int
    batch: int


class Site(msgspec.Struct, frozen=True):
    """One place of the model: the nodes there, the module's path and the source line of the first one."""

    nodes: tuple[str, ...]
    module: str
    source: str


class RegionProfile(msgspec.Struct, frozen=True):
    """Regions with one key, which run the same kernels: what one of them takes, and where they all are.

    ``ops`` are the operators as the user wrote them. ``place`` is ``target``, or ``source`` for what no backend takes:
    then ``reason`` says why, and ``timing`` is the source's. ``calls`` is how many such regions one run of the model
    has. ``nbytes`` and ``flops`` are of one call: everything that goes in and comes out once. The rates, ``bound``
    (``memory`` or ``arithmetic``), ``roof_seconds`` and ``roof_share`` are of what runs on the target;
    ``headroom_seconds`` is what all calls together would save at the roof.
    """

    key: str
    ops: tuple[str, ...]
    place: str
    backend: str
    calls: int
    launches: int
    nbytes: int
    flops: int
    sites: tuple[Site, ...]
    timing: Timing | None = None
    bytes_per_second: float | None = None
    flops_per_second: float | None = None
    bound: str = ""
    roof_seconds: float | None = None
    roof_share: float | None = None
    headroom_seconds: float | None = None
    reason: str = ""

    @property
    def kind(self) -> str:
        """The operators of the region as one name."""
        return " + ".join(self.ops[:_MOST_OPS]) + (f" + {len(self.ops) - _MOST_OPS}" if self.ops[_MOST_OPS:] else "")

    @property
    def seconds(self) -> float:
        """What all calls take together, 0 where nothing was timed."""
        return self.timing.median * self.calls if self.timing else 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0


#: Operators that the name of a region lists.
_MOST_OPS = 4


class OperatorProfile(msgspec.Struct, frozen=True):
    """All regions of one kind. ``calls`` and the seconds are of one run of the model, on the target but for those named
    ``source``; ``roof_share`` is their time at the roof by their time.
    """

    op: str
    regions: int
    calls: int
    seconds: float
    headroom_seconds: float
    roof_share: float | None
    source_calls: int = 0
    source_seconds: float = 0.0


class ProfileResult(msgspec.Struct, frozen=True):
    """Everything that is reported of a profile. Both lists begin with the largest headroom.

    ``clock`` is ``device`` or ``host``: whose clock timed the regions. ``target_seconds`` sums what runs on the target,
    ``source_seconds`` what stays on the source, both of one run of the model. ``unlisted`` counts nodes that launch
    nothing.
    """

    target: str
    backend: str
    clock: str
    roofs: Roofs
    target_seconds: float
    headroom_seconds: float
    source_seconds: float
    operators: tuple[OperatorProfile, ...]
    regions: tuple[RegionProfile, ...]
    unlisted: int = 0
