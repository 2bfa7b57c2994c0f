"""Which version of a package is installed, and whether a backend's packages are there: asked without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tapestry.backends.base import Availability


@cache
def package_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def availability(extra: str, *distributions: str) -> Availability:
    """Ready when all distributions are installed; otherwise what to install."""
    missing = [name for name in distributions if package_version(name) is None]
    if missing:
        return Availability(False, f"{', '.join(missing)} missing: pip install 'tapestry-ml[{extra}]'")
    return Availability(True)


def versions(*distributions: str) -> str:
    """``name version`` of each distribution, for a fingerprint."""
    return " ".join(f"{name} {package_version(name)}" for name in distributions)
