"""The versions and the machine that a result was made with. Asks installed metadata; imports nothing heavy."""

from __future__ import annotations

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = {
    "tapestry": "tapestry-ml",
    "torch": "torch",
    "tvm": "apache-tvm",
    "pyopencl": "pyopencl",
    "pocl": "pocl-binary-distribution",
    "wgpu": "wgpu",
    "numpy": "numpy",
    "transformers": "transformers",
}

#: A secret in a device's name, which no file may hold.
_TOKEN = re.compile(r"token=[^\s&]*")


def shown_command() -> str:
    """The command line as it was given, without secrets."""
    return _TOKEN.sub("token=…", " ".join(["tapestry", *sys.argv[1:]]))


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, str]:
    """Name → version of Python, the platform, the processor and every package that matters and is installed."""
    found = {name: installed(distribution) for name, distribution in _PACKAGES.items()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        **{name: value for name, value in found.items() if value is not None},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
