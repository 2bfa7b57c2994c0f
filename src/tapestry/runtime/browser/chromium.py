"""A Chromium of our own, without a window: finding it, starting it on one page, ending it with all its processes.

Not here: what the page does, and talking to it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

from tapestry.errors import EnvironmentProblem
from tapestry.runtime.drivers.listing import DeviceListing

VARIABLE = "TAPESTRY_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome", "microsoft-edge")
INSTALL = f"on Debian and Ubuntu: apt-get install chromium; or name one in {VARIABLE}"

#: Without --enable-unsafe-webgpu a machine without a GPU has no adapter. There is no sandbox in containers and for
#: root; the one page that is opened is ours. The developer features leave timestamps unrounded.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--enable-webgpu-developer-features",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--password-store=basic",
)

#: Becomes the browser; a process beside it ends the group, and removes the folder, when standard input ends, which is
#: when its owner does, however that happens.
_LAUNCHER = """
folder=$1
shift
exec 3<&0
{ read -r _ <&3; kill -KILL $$; sleep 0.5; rm -rf "$folder"; kill -KILL 0; } &
exec "$@" 3<&- </dev/null
"""

#: How much of what it wrote is quoted in an error, in characters.
QUOTED = 2000


def find_chromium() -> str:
    """The path of a Chromium or one of its relatives. EnvironmentProblem with the install line."""
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise EnvironmentProblem(f"{VARIABLE} names {named!r}, which is no program that can be run")
        return found
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise EnvironmentProblem(f"device browser needs Chromium, which is not installed; {INSTALL}")


def list_browser() -> list[DeviceListing]:
    """The device ``browser``. EnvironmentProblem when there is no Chromium."""
    return [DeviceListing("browser", "webgpu", f"WebGPU in a tab of {find_chromium()}", True, "")]


class Chromium:
    """A running browser with one page. EnvironmentProblem when it cannot be started.

    ``flags`` are added to those that it is always given. ``profile`` is its folder for data, which ends with it.
    """

    def __init__(self, url: str, flags: Sequence[str] = ()) -> None:
        program = find_chromium()
        self._folder = tempfile.mkdtemp(prefix="tapestry-browser-")
        start = Path(self._folder, "start.html")
        start.write_text(_redirect(url))  # not the command line, where everybody on the machine can read it
        self._log = Path(self._folder, "log")
        self.profile = Path(self._folder, "profile")
        command = [program, *FLAGS, *flags, f"--user-data-dir={self.profile}", start.as_uri()]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCHER, "sh", self._folder, *command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise EnvironmentProblem(f"{program} cannot be started: {error}") from error
        self._end = weakref.finalize(self, _end, self._process, self._folder, os.getpid())

    @property
    def pid(self) -> int:
        """The browser's main process, which leads its group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """The end of what it wrote."""
        with contextlib.suppress(OSError):
            return self._log.read_text("utf-8", "replace").strip()[-QUOTED:]
        return ""

    def kill(self) -> None:
        """End it and remove its files. May be called again."""
        self._end()


def _redirect(url: str) -> str:
    return f"<!doctype html><meta charset=utf-8><script>location.replace({url!r})</script>"


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the owner: it is not its child
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
