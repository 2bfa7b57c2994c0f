"""``--option KEY=VALUE``: the options of backends, as the command line gives them.

Not here: what a backend makes of its options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tapestry.errors import UsageError

if TYPE_CHECKING:
    from tapestry.backends.base import Backend, Options

#: The option that may be given as a suite, whose activations are then stored under the name that it really takes.
_CALIBRATION = "calibration"


def backend_options(backend: str, given: Sequence[str]) -> dict[str, Options]:
    """The options by backend; empty where none are given.

    ``backend`` is the list of ``--backend``. Each backend gets the options that it has; UsageError for one that none
    of them has, or whose value does not fit, and where no backend was named.
    """
    values = _parsed(given)
    if not values:
        return {}
    if not backend:
        raise UsageError("--option sets options of backends: name the backend too, with --backend NAME")
    from tapestry.backends.registry import ready_backends

    backends = {entry.name: entry for entry in ready_backends(backend)}
    _check_known(backends, values)
    if _CALIBRATION in values:
        values[_CALIBRATION] = _calibration(values)
    return {name: _read(entry, values) for name, entry in backends.items()}


def _parsed(given: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UsageError(f"expected --option KEY=VALUE, for example precision=int8, got {text!r}")
        if key in values:
            raise UsageError(f"option {key!r} is given twice: {values[key]!r} and {value!r}")
        values[key] = value
    return values


def _check_known(backends: Mapping[str, Backend], values: Mapping[str, str]) -> None:
    known = {name: _fields(entry) for name, entry in backends.items()}
    for key in values:
        if not any(key in fields for fields in known.values()):
            has = "; ".join(f"{name} has {', '.join(fields) or 'none'}" for name, fields in known.items())
            raise UsageError(f"no option {key!r}: {has}")


def _fields(backend: Backend) -> tuple[str, ...]:
    return type(backend.options()[0]).__struct_fields__


def _read(backend: Backend, values: Mapping[str, str]) -> Options:
    from tapestry.placement.placement import read_options

    return read_options(backend, {key: value for key, value in values.items() if key in _fields(backend)})


def _calibration(values: Mapping[str, str]) -> str:
    """The name of stored activations: as given, or those of the suite at that path."""
    from tapestry.backends.host.calibration import is_stored
    from tapestry.suite.calibration import store_activations
    from tapestry.suite.store import load_suite

    value = values[_CALIBRATION]
    if values.get("precision") != "int8":
        raise UsageError(f"calibration={value} is for int8: give --option precision=int8 too")
    if is_stored(value):
        return value
    if not Path(value).is_dir():
        raise UsageError(
            f"calibration: expected a suite made by tapestry carve, or the name of stored activations, got {value!r}"
        )
    return store_activations(load_suite(Path(value)))
