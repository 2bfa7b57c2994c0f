"""Whole placements, measured: their error on a set of inputs, and their latency, interleaved with others'.

Not here: which placements (search).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Literal, Protocol

import msgspec
import torch

from tapestry.errors import ConnectionLostError, DeviceLostError, EnvironmentProblem, TapestryError
from tapestry.numerics import program_error
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.placement import Placement
from tapestry.placement.reference import Reference, reference_for, run_watched, widened_tensors
from tapestry.placement.search.store import Answer, CostKey, CostStore
from tapestry.program.inputs import InputSet
from tapestry.program.program import Program

#: Rounds of an interleaved measurement, after one that warms up; each runs every executable once.
ROUNDS = 15
#: Rounds end after so many seconds once there are three.
_SECONDS = 20.0


@dataclass(frozen=True)
class Latency:
    """Seconds of one run of a placement: the median, and how far off it may be (half a 95 % interval)."""

    seconds: float
    spread: float = 0.0

    @staticmethod
    def of(samples: Sequence[float]) -> Latency:
        """From single runs. The interval of a median is 1.57·IQR/√n to each side (McGill, Tukey and Larsen 1978)."""
        if len(samples) < 3:
            return Latency(median(samples), max(samples) - min(samples))
        low, _, high = quantiles(samples, n=4)
        return Latency(median(samples), 1.57 * (high - low) / len(samples) ** 0.5)


class RejectedError(TapestryError):
    """A whole placement cannot be used: it does not build, or does not run; the message says why."""


class EndToEnd(Protocol):
    """What a search asks of whole placements."""

    @property
    def source_error(self) -> float:
        """``max_rel_error`` of the source itself, over all inputs."""
        ...

    def error(self, placement: Placement, held_out: bool) -> float:
        """``max_rel_error`` on the inputs that the search may see, or on those held out. RejectedError."""
        ...

    def latencies(self, placements: Sequence[Placement]) -> list[Latency | None]:
        """Measured in turns in one process, so that all meet the same conditions; None for one that fails."""
        ...


@dataclass
class MeasuredEndToEnd:
    """Placements built and run. ``checked`` builds on devices in workers, ``timed`` in this process.

    ``held_out`` are inputs that nothing was chosen by.
    """

    program: Program
    inputs: Sequence[InputSet]
    held_out: Sequence[InputSet]
    checked: Builder
    timed: Builder
    rounds: int = ROUNDS
    _references: dict[int, Reference] = field(default_factory=dict[int, Reference])
    _wide: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])

    @property
    def source_error(self) -> float:
        """The largest error of the source over all inputs, against the oracle."""
        places = range(len(self.inputs) + len(self.held_out))
        return max(entry.source_error.max_rel_error for place in places for entry in self._reference(place))

    def error(self, placement: Placement, held_out: bool) -> float:
        """The largest error over the inputs, state carried from call to call. RejectedError where it does not run."""
        first = len(self.inputs) if held_out else 0
        sets = self.held_out if held_out else self.inputs
        try:
            executable = self.checked.build(placement)
            try:
                found = [self._error(executable, entry, first + place) for place, entry in enumerate(sets)]
            finally:
                # On a device that is lost there is nothing to free, and why it was lost must not be hidden.
                with suppress(DeviceLostError):
                    executable.close()
            return max(found, default=0.0)
        except (ConnectionLostError, EnvironmentProblem, RejectedError):
            raise
        except DeviceLostError as error:
            for resident in self.checked.residents.values():
                resident.device.restart()
            raise RejectedError(str(error)) from error
        except (TapestryError, RuntimeError, ValueError, IndexError) as error:
            raise RejectedError(str(error)) from error

    def _error(self, executable: Executable, entry: InputSet, place: int) -> float:
        executable.reset()
        worst = 0.0
        for call, expected in zip(entry.calls, self._reference(place), strict=True):
            got = run_watched(executable, call.args, dict(call.kwargs))
            worst = max(worst, program_error(got, expected.oracle).max_rel_error)
        return worst

    def _reference(self, place: int) -> Reference:
        if place not in self._references:
            self._wide = self._wide or widened_tensors(self.program)
            sets = (*self.inputs, *self.held_out)
            self._references[place] = reference_for(self.program, sets[place], self._wide)
        return self._references[place]

    def latencies(self, placements: Sequence[Placement]) -> list[Latency | None]:
        """The first input set's calls, each executable in turn, from the state at capture."""
        samples: list[list[float]] = [[] for _ in placements]
        with ExitStack() as open_:
            built = [self._built(placement, open_) for placement in placements]
            begin = time.perf_counter()
            for number in range(self.rounds + 1):
                for place in _turn(len(built), number):
                    executable = built[place]
                    if executable is None:
                        continue
                    seconds = self._time(executable)
                    if seconds is None:
                        built[place] = None
                    elif number:
                        samples[place].append(seconds)
                if number >= 3 and time.perf_counter() - begin > _SECONDS:
                    break
        return [
            Latency.of(found) if found and executable is not None else None
            for found, executable in zip(samples, built, strict=True)
        ]

    def _built(self, placement: Placement, open_: ExitStack) -> Executable | None:
        try:
            return open_.enter_context(self.timed.build(placement))
        except (ConnectionLostError, EnvironmentProblem):
            raise
        except TapestryError:
            return None

    def _time(self, executable: Executable) -> float | None:
        executable.reset()
        total = 0.0
        try:
            for call in self.inputs[0].calls:
                begin = time.perf_counter()
                executable.run(call.args, dict(call.kwargs))
                total += time.perf_counter() - begin
        except (TapestryError, RuntimeError, ValueError, IndexError):
            return None
        return total / len(self.inputs[0].calls)


def _turn(count: int, number: int) -> list[int]:
    """Everyone once, beginning with another one each round: what runs before does not always run before."""
    return [(place + number) % count for place in range(count)]


class StoredEndToEnd:
    """Keeps the answers of another EndToEnd in a store: the same placements, measured together, are not measured again.

    ``data`` names everything else that they depend on: program, tensors, inputs, devices, threads.
    """

    def __init__(self, inner: EndToEnd, store: CostStore, data: str) -> None:
        self._inner = inner
        self._store = store
        self._data = data
        #: How often something was run, not found in the store.
        self.measured = 0

    @property
    def source_error(self) -> float:
        """As the inner one."""
        return self._number("the source's error", lambda: self._inner.source_error)

    def error(self, placement: Placement, held_out: bool) -> float:
        """As the inner one; a rejection is kept, too."""
        name = f"error {held_out} {_digest([placement])}"
        return self._number(name, lambda: self._inner.error(placement, held_out))

    def latencies(self, placements: Sequence[Placement]) -> list[Latency | None]:
        """As the inner one."""
        names = [f"latency {_digest(placements)} {place}" for place in range(len(placements))]
        kept = [self._latency(name) for name in names]
        if all(entry is not None for entry in kept):
            return [entry if isinstance(entry, Latency) else None for entry in kept]
        self.measured += 1
        found = self._inner.latencies(placements)
        for name, latency in zip(names, found, strict=True):
            if latency is None:
                self._store.put(self._key(name), Answer(refused="does not run"))
            else:
                self._store.put(self._key(name), Answer(latency.seconds))
                self._store.put(self._key(f"{name} spread"), Answer(latency.spread))
        return found

    def _latency(self, name: str) -> Latency | Literal["failed"] | None:
        """What is kept; ``failed`` for a placement that did not run, None where nothing is."""
        answer = self._store.get(self._key(name))
        if answer is None:
            return None
        if answer.refused:
            return "failed"
        spread = self._store.get(self._key(f"{name} spread"))
        return None if spread is None else Latency(answer.number, spread.number)

    def _number(self, name: str, measure: Callable[[], float]) -> float:
        key = self._key(name)
        answer = self._store.get(key)
        if answer is None:
            self.measured += 1
            try:
                answer = Answer(measure())
            except RejectedError as rejection:
                answer = Answer(refused=str(rejection))
            self._store.put(key, answer)
        if answer.refused:
            raise RejectedError(answer.refused)
        return answer.number

    def _key(self, name: str) -> CostKey:
        return CostKey("placement", name, "", "", "", 0, self._data)


def _digest(placements: Sequence[Placement]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(placements), order="deterministic")).hexdigest()
