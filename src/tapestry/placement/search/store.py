"""Measured costs on disk, in SQLite: under everything that they depend on, so that no search measures one twice.

Each answer is written at once, so that a search that is stopped loses nothing. Not here: measuring.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Literal, cast

import filelock
import msgspec
import platformdirs

#: Kept in the file's ``user_version``; raised whenever the table or the meaning of a key changes.
VERSION = 1
#: ``application_id`` of the file: "TPSC".
_APPLICATION = 0x54505343
#: Seconds to wait for another process that is writing.
_PATIENCE = 10.0
#: How many damaged files are passed over before costs are kept in memory only.
_TRIES = 8

_TABLE = """
CREATE TABLE IF NOT EXISTS costs (
    key TEXT PRIMARY KEY, quantity TEXT NOT NULL, region TEXT NOT NULL, backend TEXT NOT NULL, options TEXT NOT NULL,
    device TEXT NOT NULL, threads INTEGER NOT NULL, data TEXT NOT NULL, number REAL, refused TEXT
) WITHOUT ROWID
"""

Quantity = Literal["latency", "boundary", "error", "placement"]


class CostKey(msgspec.Struct, frozen=True):
    """Everything that a cost depends on.

    ``region``: key of the region, the size of a transfer in bytes, or a placement. ``backend`` and ``device`` are
    fingerprints, ``data`` a digest of the values that it was measured with (empty where they do not count).
    """

    quantity: Quantity
    region: str
    backend: str
    options: str
    device: str
    threads: int
    data: str = ""

    @property
    def digest(self) -> str:
        """The key as one text."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Answer(msgspec.Struct, frozen=True):
    """A number (seconds, or an error), or the reason why the candidate is refused."""

    number: float = 0.0
    refused: str = ""


class _UnusableError(Exception):
    """A file that is no store of this release; the message says what it is."""


def default_path() -> Path:
    """Where costs are kept unless told otherwise: under the user's cache directory."""
    return Path(platformdirs.user_cache_dir("tapestry")) / "costs.sqlite"


class CostStore:
    """Costs in a file, safe to share between processes. Use as a context manager, or close it.

    A file that is damaged, newer or not ours is left as it is and a fresh one made beside it (``costs.2.sqlite``);
    where none can be written, costs live as long as the store. ``messages`` says so. Nothing here raises for a file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.messages: list[str] = []
        self.hits = 0
        self.misses = 0
        self._paths = iter(_beside(path or default_path()))
        self.path: Path | None = None
        self._connection = self._open_next()

    def __enter__(self) -> CostStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def get(self, key: CostKey) -> Answer | None:
        """The answer kept under a key, or None."""
        found = self._ask("SELECT number, refused FROM costs WHERE key = ?", (key.digest,))
        if not found:
            self.misses += 1
            return None
        self.hits += 1
        number, refused = cast("tuple[float | None, str | None]", found[0])
        return Answer(0.0 if number is None else float(number), refused or "")

    def put(self, key: CostKey, answer: Answer) -> None:
        """Keep an answer: one transaction, which is whole or not there at all."""
        number = None if answer.refused else answer.number
        values = (
            key.digest, key.quantity, key.region, key.backend, key.options, key.device, key.threads, key.data,
            number, answer.refused or None,
        )  # fmt: skip
        self._ask("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def __len__(self) -> int:
        found = self._ask("SELECT count(*) FROM costs", ())
        return cast("int", found[0][0]) if found else 0

    def _ask(self, text: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        while True:
            try:
                return self._connection.execute(text, values).fetchall()
            except sqlite3.OperationalError as error:  # locked for long, or a full disk: costs are only not kept
                self._say(f"costs are not kept in {self.path}: {error}")
                return []
            except sqlite3.DatabaseError as error:
                self._say(f"{self.path} is damaged ({error}); it is left as it is and a fresh one made beside it")
                self._connection.close()
                self._connection = self._open_next()

    def _open_next(self) -> sqlite3.Connection:
        for path in self._paths:
            try:
                connection = _opened(path)
            except _UnusableError as error:
                self._say(f"{path}: {error}; it is left as it is and a fresh one made beside it")
            except (OSError, sqlite3.OperationalError) as error:
                self._say(f"costs cannot be kept in {path}: {error}; they are forgotten at the end")
                break
            else:
                self.path = path
                return connection
        self.path = None
        return _prepared(sqlite3.connect(":memory:", isolation_level=None))

    def _say(self, message: str) -> None:
        if message not in self.messages:
            self.messages.append(message)


def _beside(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.stem}.{place}{path.suffix}") for place in range(2, _TRIES + 1))


def _opened(path: Path) -> sqlite3.Connection:
    """An open store. _UnusableError for a file that is none; OSError, filelock.Timeout or
    OperationalError where none can be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two that make the same file at once would find it locked in a way that SQLite does not wait for.
    with filelock.FileLock(path.with_name(f"{path.name}.lock"), timeout=_PATIENCE):
        return _opened_alone(path)


def _opened_alone(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        _check(connection)
        # Readers and a writer at once, and a killed process leaves the file whole.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return _prepared(connection)
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        raise _UnusableError(f"is damaged ({error})") from error
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection) -> None:
    application = _pragma(connection, "application_id")
    version = cast("int", _pragma(connection, "user_version"))
    with closing(connection.execute("SELECT count(*) FROM sqlite_master")) as cursor:
        empty = cursor.fetchone()[0] == 0
    if empty and application == 0:
        return
    if application != _APPLICATION:
        raise _UnusableError("is a database of another program")
    if version > VERSION:
        raise _UnusableError(f"is of version {version}, this release reads up to {VERSION}: update tapestry-ml")
    if version < VERSION:
        raise _UnusableError(f"is of version {version}, this release reads from {VERSION} on")
    state = _pragma(connection, "quick_check(1)")
    if state != "ok":
        raise _UnusableError(f"is damaged ({state})")


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(_TABLE)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        return cursor.fetchone()[0]
