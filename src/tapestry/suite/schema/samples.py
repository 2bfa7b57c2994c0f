"""The calls of one overload that PyTorch's samples make, recorded with their values.

Not here: finding the entries (index), trying the calls (trial).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import cast

import torch
from torch._ops import OpOverload

from tapestry.suite.schema import index, opinfo
from tapestry.suite.schema.recording import Sink, recording
from tapestry.suite.schema.trial import copies

#: Entries looked at, and samples of an entry in the first dtype and in each other one.
ENTRIES = 3
SAMPLES = 40
SAMPLES_OF_OTHER_DTYPES = 5
#: Calls kept of one sample: a composite may make the same call many times.
CALLS_OF_A_SAMPLE = 3


@dataclass(frozen=True)
class Proposal:
    """Arguments that may make a valid call, and where they are from. Not tried yet."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    source: str


def sampled(target: OpOverload) -> Iterator[Proposal]:
    """What the entries that are about the operator call the overload with, float32 first."""
    places = index.load().get(str(target), ())
    if places and index.about(str(target), places[0]):
        best = index.rank(str(target), places[0])
        yield from _of_places(target, [place for place in places if index.rank(str(target), place) == best][:ENTRIES])


def by_the_way(target: OpOverload) -> Iterator[Proposal]:
    """What entries about other operators call the overload with: values of few kinds."""
    places = index.load().get(str(target), ())
    yield from _of_places(target, [place for place in places if not index.about(str(target), place)][:ENTRIES])


def _of_places(target: OpOverload, places: list[index.Place]) -> Iterator[Proposal]:
    for dtype in opinfo.DTYPES:
        for place in places:
            info = opinfo.entries().get(place.entry)
            if info is not None and dtype in opinfo.dtypes(info):
                yield from _of_entry(target, place, info, dtype)


def _of_entry(target: OpOverload, place: index.Place, info: object, dtype: torch.dtype) -> Iterator[Proposal]:
    first = str(dtype) == f"torch.{place.dtype}"
    most = max(SAMPLES, place.sample + SAMPLES_OF_OTHER_DTYPES) if first else SAMPLES_OF_OTHER_DTYPES
    found: list[Proposal] = []
    with opinfo.seeded():
        for number, (args, kwargs, broadcasts) in enumerate(islice(opinfo.samples(info, dtype), most)):
            if broadcasts and opinfo.writes(place.form):
                continue
            source = f"OpInfo {place.entry} sample {number} ({str(dtype)[6:]}, {place.form})"
            calls = _recorded(target, place, info, args, kwargs)
            found.extend(Proposal(*call, source) for call in calls[:CALLS_OF_A_SAMPLE])
    yield from found


def _recorded(
    target: OpOverload, place: index.Place, info: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    found: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def keep(called: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if called is target and len(found) < CALLS_OF_A_SAMPLE:
            positional, named = cast("tuple[tuple[object, ...], list[object]]", copies((args, list(kwargs.values()))))
            found.append((positional, dict(zip(kwargs, named, strict=True))))

    def ignore(called: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        return None

    sinks: tuple[Sink, Sink | None] = (ignore, keep) if place.below else (keep, None)
    try:
        with recording(*sinks):
            index.call_form(info, place.form, copies([args, *kwargs.values()]), kwargs)
    except Exception:
        # A sample that this form refuses may have made calls before; what was recorded is tried on its own.
        return found
    return found
