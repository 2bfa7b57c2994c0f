"""The error that says an operator has no oracle. Not a fault of the platform or of the user's model."""

from __future__ import annotations

from tapestry.errors import TapestryError


class NoOracle(TapestryError):  # noqa: N818 - named for what it says
    """There is no reference of higher precision for this call; the message says why."""
