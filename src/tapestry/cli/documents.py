"""The JSON that commands write: a contract, described by docs/schema and only ever extended. Free of torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tapestry.backends.cache import replace_file
from tapestry.errors import FormatError, UsageError
from tapestry.migration.explanation import Explanation
from tapestry.migration.result import MigrationResult
from tapestry.numerics.verdict import Verdict
from tapestry.placement.search.record import PlaceResult
from tapestry.profiling.result import ProfileResult
from tapestry.suite.against import Comparison, Past
from tapestry.suite.audit.result import AuditResult
from tapestry.suite.side_by_side import OperatorRow

VERSION = 1


class Envelope(msgspec.Struct, kw_only=True):
    """What every document starts with. ``seconds`` is the wall time of the command."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]


class FactDocument(msgspec.Struct):
    """A check in the model's own terms."""

    label: str
    value: str
    good: bool


class MigrateDocument(MigrationResult, frozen=True, kw_only=True):
    """``tapestry migrate --json``: the fields of an Envelope, and the result."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]
    facts: tuple[FactDocument, ...] = ()
    report: str | None = None
    journal: str | None = None
    injected: tuple[str, ...] = ()
    #: The model's further programs by name (a language model's ``prefill``); the fields beside it are of ``main``.
    programs: dict[str, MigrationResult] = msgspec.field(default_factory=dict[str, MigrationResult])


class ExplainDocument(Explanation, frozen=True, kw_only=True):
    """``tapestry explain --json``: the fields of an Envelope, and the explanation."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]


class ProfileDocument(ProfileResult, frozen=True, kw_only=True):
    """``tapestry profile --json``: the fields of an Envelope, and the result."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]
    report: str | None = None


class PlaceDocument(PlaceResult, frozen=True, kw_only=True):
    """``tapestry place --json``: the fields of an Envelope, and the result."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]


class LeftOutDocument(msgspec.Struct):
    """Samples of an operator that are not in the suite."""

    op: str
    samples: int
    reason: str


class CarveDocument(Envelope, kw_only=True):
    """``tapestry carve --json``. Bytes on disk; ``dump_bytes`` is what recording every call would have taken."""

    suite: str
    cases: int
    operators: int
    bytes: int
    dump_bytes: int
    dump_bytes_activations: int
    eager_seconds: float
    carve_seconds: float
    finish_seconds: float
    left_out: list[LeftOutDocument]
    variants: int = 0
    parts: int = 0


class ErrorDocument(msgspec.Struct):
    """The largest errors of a case."""

    max_ulp: float | None
    max_rel: float | None
    nmse: float | None


class FailureDocument(msgspec.Struct):
    """A case that neither passed nor is undefined."""

    case: str
    op: str
    variant: str
    verdict: Verdict
    error: ErrorDocument
    reason: str
    kind: str = ""
    latent: bool = False
    backend: str = ""


class ReplayedDevice(msgspec.Struct):
    """All cases on one device. ``against`` compares with an older replay where one was named.

    ``overruled`` are failures of a preferred backend (a hand-written kernel); ``failures`` are of those asked last.
    """

    device: str
    backend: str
    cases: int
    verdicts: dict[str, int]
    failures: list[FailureDocument]
    variants: int = 0
    latent: int = 0
    results: list[Past] = []
    against: Comparison | None = None
    overruled: list[FailureDocument] = []


class ReplayDocument(Envelope, kw_only=True):
    """``tapestry replay --json``. ``differing``: the operators on which several devices disagree."""

    suite: str
    devices: list[ReplayedDevice]
    differing: list[OperatorRow] = []


class AuditDocument(AuditResult, frozen=True, kw_only=True):
    """``tapestry audit --json``: the fields of an Envelope, and the result."""

    version: int = VERSION
    command: str
    model: str | None = None
    seconds: float
    environment: dict[str, str]
    suite: str | None = None
    file: str


class ReproEntry(msgspec.Struct):
    """One case. ``folder`` holds its bundle, None where it does not fail; ``runs`` are runs on the device."""

    case: str
    op: str
    folder: str | None
    verdict: Verdict
    reason: str
    backend: str
    runs: int
    elements_before: int
    elements_after: int


class ReproDocument(Envelope, kw_only=True):
    """``tapestry repro --json``."""

    suite: str
    device: str
    repros: list[ReproEntry]


class AgentDocument(Envelope, kw_only=True):
    """``tapestry agent --json``, written once it listens: ``address`` is the device's name for clients, tokenless."""

    device: str
    address: str
    native: bool


class DeviceDocument(msgspec.Struct):
    """A device, or a kind of device that cannot be used here and why."""

    name: str
    kind: str
    description: str
    ready: bool
    reason: str


class DevicesDocument(Envelope, kw_only=True):
    """``tapestry devices --json``."""

    devices: list[DeviceDocument]


class BackendDocument(msgspec.Struct):
    """A backend."""

    name: str
    device_kinds: list[str]
    ready: bool
    reason: str
    fingerprint: str | None


class BackendsDocument(Envelope, kw_only=True):
    """``tapestry backends --json``."""

    backends: list[BackendDocument]


class Examined(msgspec.Struct):
    """One thing that the doctor looked at; ``state`` is ``good``, ``missing`` or ``broken``."""

    name: str
    state: str
    detail: str


class DoctorDocument(Envelope, kw_only=True):
    """``tapestry doctor --json``."""

    checks: list[Examined]


#: Whatever a command may write.
Document = Envelope | MigrateDocument | ExplainDocument | AuditDocument | ProfileDocument | PlaceDocument

#: File name in docs/schema → the document it describes.
DOCUMENTS: dict[str, type[Document]] = {
    "migrate": MigrateDocument,
    "carve": CarveDocument,
    "replay": ReplayDocument,
    "audit": AuditDocument,
    "explain": ExplainDocument,
    "profile": ProfileDocument,
    "place": PlaceDocument,
    "repro": ReproDocument,
    "agent": AgentDocument,
    "devices": DevicesDocument,
    "backends": BackendsDocument,
    "doctor": DoctorDocument,
}


def read_replay(path: Path) -> ReplayDocument:
    """A replay's JSON. UsageError when there is none at the path; FormatError when it is something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; expected the JSON of a replay") from error
    try:
        found = msgspec.json.decode(data, type=ReplayDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path} is not the JSON of a replay: {error}; write one with tapestry replay --json"
        ) from error
    if found.version > VERSION:
        raise FormatError(f"{path} is of version {found.version}, this release reads {VERSION}; update tapestry-ml")
    return found


def write_json(path: Path, document: Document) -> None:
    """Write a document. A number that is infinite or not a number becomes null. UsageError as `write_file`."""
    write_file(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically; a pipe or a device such as /dev/stdout is written to as it is.

    UsageError when the path cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
