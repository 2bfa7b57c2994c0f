"""The search for the fastest placement within an error budget: always with an answer, and never worse than any single
backend.

Candidates are priced, single backends measured, the best choice worked out, its neighbours measured, and all that came
of it measured once more in turns. Ctrl-C or the end of the time gives the best so far. Not here: what candidates there
are, what they cost, and how placements are measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tapestry.errors import UsageError
from tapestry.numerics import program_bound
from tapestry.placement.placement import PlacedRegion, Placement, on_source, option_values
from tapestry.placement.search import warm
from tapestry.placement.search.candidates import SOURCE, Candidate, Candidates, Way
from tapestry.placement.search.costs import CostModel
from tapestry.placement.search.end_to_end import EndToEnd, Latency, RejectedError
from tapestry.placement.search.exact import Effort, Solution, solve
from tapestry.placement.search.moves import merged, neighbours, single
from tapestry.placement.search.problem import Choice, Pricing, Problem, problem_of
from tapestry.placement.search.record import Best, Errors, FoundRegion, PlaceResult, Single

#: The part of the budget that a search may use; the rest is for inputs that it has not seen.
MARGIN = 0.7
#: Parts of the time after which candidates are priced no more, the exact stage ends, and no more moves are made.
_PRICED, _SOLVED, _REFINED = 0.5, 0.7, 0.85
#: Moves that are measured together with the best choice so far.
_BATCH = 4
#: How often the exact stage is done again with regions that its solution has merged.
_GROWTHS = 4
#: Two latencies closer than this part are a tie whatever their spread says: no host repeats itself more exactly.
_TIE = 0.01


@dataclass(frozen=True)
class Limits:
    """``budget`` is on ``max_rel_error`` of the program's outputs against the oracle; 0 stands for reference precision,
    held to what a migrated program is held to. ``seconds`` are for everything.
    """

    budget: float = 0.0
    seconds: float = 600.0
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        if not 0 <= self.budget < math.inf:
            raise UsageError(f"expected a budget of 0 or more, got {self.budget}")
        if not self.seconds > 0:
            raise UsageError(f"expected a time above 0 seconds, got {self.seconds}")


class Found(PlaceResult, frozen=True, kw_only=True):
    """The winner, and what there is to say of it."""

    placement: Placement


@dataclass(eq=False)
class _Contender:
    """A placement that may win. ``error`` is on the inputs that are searched with."""

    choice: Choice
    placement: Placement
    error: float
    latency: Latency | None = None
    way: Way | None = None

    @property
    def simplicity(self) -> int:
        """The fewer regions the simpler; the source is the simplest."""
        return len(self.placement.regions)


def reference_only(ways: Sequence[Way]) -> tuple[Way, ...]:
    """The ways at reference precision: each backend's first option. What a budget of 0 may use."""
    return tuple(way for way in ways if way.options == way.backend.options()[0])


def search(
    candidates: Candidates,
    costs: CostModel,
    whole: EndToEnd,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    measured: Callable[[], int] = lambda: 0,
    pressed: Callable[[], bool] = lambda: False,
) -> Found:
    """The fastest placement of the candidates within the limits.

    ``measured`` says how many measurements were made so far; ``pressed`` whether Ctrl-C was, for where a measurement
    takes the KeyboardInterrupt for a fault of its own. EnvironmentProblem when OR-Tools is missing.
    """
    return _Search(candidates, costs, whole, limits or Limits(), clock, measured, pressed).run()


class _Search:
    def __init__(
        self,
        candidates: Candidates,
        costs: CostModel,
        whole: EndToEnd,
        limits: Limits,
        clock: Callable[[], float],
        measured: Callable[[], int],
        pressed: Callable[[], bool],
    ) -> None:
        self.candidates = candidates
        self.program = candidates.program
        self.costs = costs
        self.whole = whole
        self.limits = limits
        self.clock = clock
        self.measured = measured
        self.pressed = pressed
        self.begin = clock()
        self.ended = "done"
        self.pricing: Pricing | None = None
        self.solution: Solution | None = None
        self.singles: list[Single] = []
        self.contenders: list[_Contender] = []
        self.best: _Contender | None = None
        self.allowed = limits.budget
        self.source_error = 0.0
        self.held_out: float | None = None
        self.grown: set[Candidate] = set()
        self._rejected: dict[Choice, str] = {}
        self._errors: dict[Choice, float] = {}

    def run(self) -> Found:
        try:
            self._prepare()
            for stage in (self._price, self._singles, self._solve, self._refine):
                if not self._late(_REFINED):
                    stage()
            self._compare()
            if self._late(_REFINED):
                self.ended = "time"
        except KeyboardInterrupt:
            self.ended = "interrupted"
        return self._found()

    def _late(self, part: float) -> bool:
        if self.pressed():
            raise KeyboardInterrupt
        return self.clock() - self.begin > part * self.limits.seconds

    # ----------------------------------------------------------------------------------------------------------- stages

    def _prepare(self) -> None:
        self.source_error = self.whole.source_error
        self.allowed = self.limits.budget or program_bound(self.source_error)
        self.best = _Contender((), on_source(self.program), self.source_error)
        self.contenders.append(self.best)

    def _price(self) -> None:
        self.pricing = problem_of(self.candidates, self.costs, lambda: self._late(_PRICED))
        if self.pricing.left_out:
            self.ended = "time"
        source = self.contenders[0]
        source.choice = warm.on_source(self.problem)

    @property
    def problem(self) -> Problem:
        assert self.pricing is not None, "candidates are priced first"
        return self.pricing.problem

    @property
    def room(self) -> float:
        """What the regions of a choice may add to the source's error."""
        return MARGIN * self.allowed - self.source_error

    def _singles(self) -> None:
        """Every backend alone, in each option: measured, since the winner must be no slower than any."""
        for way in self.candidates.ways:
            choice = single(self.problem, way.kind, str(way.options))
            if not self.problem.regions(choice):
                self._record(way, None, "takes no part of the program that is right and can be compiled")
                continue
            contender = self._contender(choice, way)
            if contender is None:
                self._record(way, None, self._rejected[choice])
            elif contender.placement not in [entry.placement for entry in self.contenders]:
                self.contenders.append(contender)
        self._measure(self.contenders)
        for contender in self.contenders:
            if contender.way is not None:
                self._record(contender.way, contender, "")
        self.best = self._simplest_of_the_fastest(self._within(self.contenders))

    def _record(self, way: Way, contender: _Contender | None, reason: str) -> None:
        name, options, device = way.backend.name, str(way.options), way.info.name
        if contender is None:
            self.singles.append(Single(name, options, None, None, False, device=device, reason=reason))
            return
        within = contender.error <= self.allowed
        latency = _milli(contender.latency)
        self.singles.append(Single(name, options, latency, contender.error, within, contender.simplicity, device))

    def _solve(self) -> None:
        """The best choice, and again with what it makes of neighbouring regions of one way that became one."""
        for _ in range(_GROWTHS):
            if self.room <= 0 or self._late(_SOLVED):
                return
            self.solution = solve(self.problem, self.room, self._added, self.limits.effort, lambda: self._late(_SOLVED))
            if self.solution.interrupted and not self._late(_SOLVED):  # not the time, but Ctrl-C
                raise KeyboardInterrupt
            self._add(self.solution.choice)
            new = [e for e in merged(self.candidates, self.problem, self.solution.choice) if e not in self.grown]
            if not new:
                return
            assert self.pricing is not None
            self.pricing = self.pricing.extended(self.program, new, self.costs)
            self.grown.update(new)

    def _added(self, choice: Choice) -> float:
        """What a choice adds to the source's error, as measured; infinite where it does not run."""
        contender = self._contender(choice)
        return math.inf if contender is None else max(0.0, contender.error - self.source_error)

    def _add(self, choice: Choice) -> None:
        contender = self._contender(choice)
        known = [entry.placement for entry in self.contenders]
        if contender is not None and contender.placement not in known and contender.error <= MARGIN * self.allowed:
            self.contenders.append(contender)
            self._challenge([contender])

    def _refine(self) -> None:
        """Moves around the best choice, measured in turns with it, until none is faster or the time is over."""
        tried: set[Choice] = set()
        while self.room > 0 and self.best is not None and not self._late(_REFINED):
            before = self.best
            moves = [move for move in neighbours(self.problem, before.choice, self.room) if move not in tried][:_BATCH]
            tried.update(moves)
            if not moves:
                return
            found = [entry for move in moves if (entry := self._contender(move)) is not None]
            good = [entry for entry in found if entry.error <= MARGIN * self.allowed]
            if good:
                self._challenge(good)
            if self.best is not before:
                self.contenders.append(self.best)

    def _challenge(self, challengers: Sequence[_Contender]) -> None:
        assert self.best is not None
        together = [self.best, *challengers]
        self._measure(together)
        self.best = self._simplest_of_the_fastest(together)

    def _compare(self) -> None:
        """The best of the search and every single backend once more in turns; those over the budget on held-out inputs
        are out. The simplest of the fastest wins. Without the time for it, what was measured before decides.
        """
        assert self.best is not None
        finalists = [entry for entry in self.contenders if entry.way is not None or entry is self.contenders[0]]
        if self.best.placement not in [entry.placement for entry in finalists]:
            finalists.append(self.best)
        if not self._late(1.0):
            self._measure(finalists)
        left = self._within(finalists)
        while left:
            winner = self._simplest_of_the_fastest(left)
            held_out = self._held_out(winner)
            if held_out <= self.allowed or not winner.placement.regions:
                self.best, self.held_out = winner, held_out
                return
            left = [entry for entry in left if entry is not winner]

    # ------------------------------------------------------------------------------------------------------- contenders

    def _contender(self, choice: Choice, way: Way | None = None) -> _Contender | None:
        placement = self._placement(choice)
        if choice in self._rejected:
            return None
        if choice not in self._errors:
            try:
                self._errors[choice] = self.whole.error(placement, held_out=False)
            except RejectedError as rejection:
                self._rejected[choice] = str(rejection)
                return None
        return _Contender(choice, placement, self._errors[choice], way=way)

    def _placement(self, choice: Choice) -> Placement:
        chosen = [self.problem.priced[number].candidate for number in choice]
        regions: list[PlacedRegion] = []
        versions: dict[str, str] = {}
        for candidate in chosen:
            if candidate.on_source:
                continue
            way = self.candidates.way(candidate)
            values = option_values(way.options)
            regions.append(PlacedRegion(candidate.nodes, candidate.kind.backend, candidate.kind.device, values))
            versions[candidate.kind.backend] = way.backend.fingerprint()
        regions.sort(key=lambda region: self.program.position[region.nodes[0]])
        return Placement(self.program.name, self.program.graph_hash, tuple(regions), dict(sorted(versions.items())))

    def _measure(self, contenders: Sequence[_Contender]) -> None:
        found = self.whole.latencies([entry.placement for entry in contenders])
        for entry, latency in zip(contenders, found, strict=True):
            entry.latency = latency

    def _within(self, contenders: Iterable[_Contender]) -> list[_Contender]:
        """Those within the budget; the source is always among them."""
        return [entry for entry in contenders if entry.error <= self.allowed or not entry.placement.regions]

    def _simplest_of_the_fastest(self, contenders: Sequence[_Contender]) -> _Contender:
        running = [(entry, entry.latency) for entry in contenders if entry.latency is not None]
        if not running:
            return contenders[0]
        fastest = min((latency for _, latency in running), key=lambda latency: latency.seconds)
        ties = [(entry, latency) for entry, latency in running if _ties(latency, fastest)]
        return min(ties, key=lambda pair: (pair[0].simplicity, pair[1].seconds))[0]

    def _held_out(self, contender: _Contender) -> float:
        if not contender.placement.regions:
            return self.source_error
        try:
            return self.whole.error(contender.placement, held_out=True)
        except RejectedError:
            return math.inf

    # ----------------------------------------------------------------------------------------------------------- result

    def _found(self) -> Found:
        best = self.best or _Contender((), on_source(self.program), self.source_error)
        singles = [entry for entry in self.contenders if entry.way is not None or entry is self.contenders[0]]
        running = [entry for entry in self._within(singles) if entry.latency is not None]
        fastest = min(running, key=lambda entry: _seconds(entry.latency), default=None)
        speedup = None
        if fastest is not None and best.latency is not None:
            speedup = _seconds(fastest.latency) / _seconds(best.latency)
        return Found(
            placement=best.placement,
            budget=self.limits.budget,
            latency_ms=_milli(best.latency),
            error=Errors(best.error, self.held_out),
            best_single=None if fastest is None else _best(fastest),
            speedup=speedup,
            singles=tuple(self.singles),
            regions=self._regions(best),
            gap=self.solution.gap if self.solution else 0.0,
            candidates=len(self.candidates.entries) + len(self.grown),
            measured=self.measured(),
            refused=len(self.pricing.refused) if self.pricing else 0,
            not_measured=self.pricing.left_out if self.pricing else 0,
            ended=self.ended,
        )

    def _regions(self, best: _Contender) -> tuple[FoundRegion, ...]:
        if not best.placement.regions:
            return ()
        entries = [self.problem.priced[number] for number in best.choice]
        return tuple(
            FoundRegion(
                entry.candidate.nodes,
                entry.candidate.kind.backend,
                entry.candidate.options,
                entry.candidate.kind.device,
                entry.cost * 1e-6,
                entry.error,
            )
            for entry in sorted(entries, key=lambda entry: entry.places)
            if not entry.candidate.on_source
        )


def _ties(latency: Latency, fastest: Latency) -> bool:
    return latency.seconds - fastest.seconds <= max(_TIE * fastest.seconds, latency.spread + fastest.spread)


def _seconds(latency: Latency | None) -> float:
    return math.inf if latency is None else max(latency.seconds, 1e-12)


def _milli(latency: Latency | None) -> float | None:
    return None if latency is None else latency.seconds * 1e3


def _best(contender: _Contender) -> Best:
    name = SOURCE.backend if contender.way is None else contender.way.backend.name
    options = "" if contender.way is None else str(contender.way.options)
    return Best(name, options, _seconds(contender.latency) * 1e3, contender.error)
