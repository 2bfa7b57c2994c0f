"""Tapestry: bring a PyTorch model up on a new platform, and run each part where it is right and fast.

The public API, loaded on first use: ``import tapestry`` imports neither torch nor any compiler, so that the runtime
and the command line work without them. Nothing is defined here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapestry import errors
    from tapestry.migration.migrate import migrate
    from tapestry.placement.build import build
    from tapestry.placement.placement import Placement
    from tapestry.program.capture import capture
    from tapestry.program.program import Program
    from tapestry.suite.carve import carve
    from tapestry.suite.replay import replay

__version__ = "0.1.0"

__all__ = ["Placement", "Program", "__version__", "build", "capture", "carve", "errors", "migrate", "replay"]

_HOMES = {
    "Placement": "tapestry.placement.placement",
    "Program": "tapestry.program.program",
    "build": "tapestry.placement.build",
    "capture": "tapestry.program.capture",
    "carve": "tapestry.suite.carve",
    "migrate": "tapestry.migration.migrate",
    "replay": "tapestry.suite.replay",
}


def __getattr__(name: str) -> object:
    """A public name, imported on first use (PEP 562). EnvironmentProblem where the extra it needs is missing."""
    if name == "errors":
        return importlib.import_module("tapestry.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from tapestry.extras import missing

        problem = missing(error, f"tapestry.{name}")
        if problem is None:
            raise
        raise problem from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
