"""A converter's exception as the reason that Tapestry reports: its own words, the innermost first, cut to a length."""

from __future__ import annotations

from tapestry.errors import UnsupportedError

_LENGTH = 600


def refused(converter: str, error: BaseException) -> UnsupportedError:
    """UnsupportedError that says which converter refused, and why in its own words."""
    return UnsupportedError(f"{converter} refuses it: {words(error)}")


def words(error: BaseException) -> str:
    """What the exception at the root of a chain says, on one line."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__ or error.__context__ or error
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_LENGTH]}"
