"""The pytest plugin: ``pytest --tapestry SUITE --tapestry-device D --tapestry-backend B`` makes every case a test.

It is loaded by every pytest run in an environment with Tapestry, so nothing heavy is imported before the first suite
is collected. Without test files on the command line only the suites are run. Not here: running a case (session).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tapestry.errors import TapestryError

if TYPE_CHECKING:
    from tapestry.suite.case import Case, Suite
    from tapestry.testing.session import ReplaySession

_SUITES = pytest.StashKey["dict[Path, Suite]"]()
_SESSION = pytest.StashKey["ReplaySession"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("tapestry", "operator tests carved by Tapestry")
    group.addoption(
        "--tapestry", action="append", default=[], metavar="SUITE", help="run the cases of a suite (repeatable)"
    )
    group.addoption("--tapestry-device", default="cpu", metavar="DEVICE", help="where: cpu, opencl, … (default: cpu)")
    group.addoption("--tapestry-backend", default="", metavar="NAME", help="one backend, or several by preference")
    group.addoption(
        "--tapestry-kernels", action="append", default=[], metavar="FILE.py", help="hand-written kernels (repeatable)"
    )
    group.addoption("--tapestry-no-variants", action="store_true", help="only the cases that were carved")


def _suite_paths(config: pytest.Config) -> list[Path]:
    return [Path(entry).resolve() for entry in cast("list[str]", config.getoption("--tapestry"))]


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suites: beside the test files that were named, or alone."""
    config.addinivalue_line("markers", "tapestry: a case of an operator suite (tapestry carve)")
    paths = _suite_paths(config)
    if not paths:
        return
    config.stash[_SUITES] = {}
    missing = [path for path in paths if not (path / "suite.json").is_file()]
    if missing:
        raise pytest.UsageError(f"expected a suite (a directory with suite.json) at {missing[0]}, got none")
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    given = [entry for entry in config.args if named and entry not in map(str, paths)]
    config.args = [*given, *map(str, paths)]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the device."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A suite named on the command line is a directory of tests."""
    if path.resolve() not in _suite_paths(parent.config):
        return None
    directory: SuiteDirectory = SuiteDirectory.from_parent(parent, path=path)
    return directory


class SuiteDirectory(pytest.Directory):
    """A suite: one test per case."""

    def collect(self) -> Iterator[pytest.Item]:
        """The cases in the suite's order."""
        try:
            suite = _load(self.path, without_variants=bool(self.config.getoption("--tapestry-no-variants")))
        except TapestryError as error:
            raise self.CollectError(str(error)) from error
        self.config.stash[_SUITES][self.path] = suite
        for case in suite.cases:
            yield CaseItem.from_parent(self, name=case.id, suite=suite, case=case)


def _load(path: Path, without_variants: bool) -> Suite:
    from tapestry.suite import derived
    from tapestry.suite.store import load_suite

    suite = load_suite(path)
    return derived.without_variants(suite) if without_variants else suite


class CaseFailureError(Exception):
    """A case whose verdict keeps its operator off the device."""


class CaseItem(pytest.Item):
    """One case on the device."""

    def __init__(self, *, suite: Suite, case: Case, **kwargs: object) -> None:
        super().__init__(**kwargs)  # pyright: ignore[reportArgumentType]
        self.suite = suite
        self.case = case
        self.add_marker("tapestry")

    def runtest(self) -> None:
        """Run and judge it. Undefined and unsupported cases are skipped, with the reason."""
        result = _session(self.config).run(self.suite, self.case)
        self.user_properties += [
            ("verdict", str(result.verdict)),
            ("device", result.device),
            ("backend", result.backend),
            ("variant", result.variant),
            ("latent", str(result.latent).lower()),
            ("max_ulp", f"{result.max_ulp:g}"),
            ("max_rel", f"{result.max_rel:g}"),
        ]
        if result.skipped:
            pytest.skip(f"{result.verdict}: {result.reason}")
        if result.failed:
            raise CaseFailureError(result.told(self.case))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """What the verdict says; a traceback only for what is no verdict."""
        if isinstance(excinfo.value, CaseFailureError | TapestryError):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the case is from: the suite, and the line of the model."""
        line = f" at {self.case.source_line}" if self.case.source_line else ""
        return self.path, None, f"{self.case.op}{line}: {self.case.id}"


def _session(config: pytest.Config) -> ReplaySession:
    if _SESSION not in config.stash:
        from tapestry.testing.session import ReplaySession

        config.stash[_SESSION] = ReplaySession(
            str(config.getoption("--tapestry-device")),
            str(config.getoption("--tapestry-backend")),
            [Path(entry) for entry in cast("list[str]", config.getoption("--tapestry-kernels"))],
        )
    return config.stash[_SESSION]
