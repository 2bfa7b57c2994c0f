"""What a backend is: it turns regions into something a device runs, and says through rules what it supports.

Not here: any backend, the registry, and the kinds of rules (rules).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.rule import NO_RULE, OTHER_DEVICE, Allowed, Match, Matchable, Rule, RuleError, When
from tapestry.backends.rules.single import AnyOp, CallRule, Ops
from tapestry.program.graph import Call, Graph
from tapestry.runtime.device import Device, DeviceInfo
from tapestry.runtime.module import Compiled

__all__ = [
    "AnyOp", "Availability", "Backend", "CallRule", "Match", "Ops", "Options", "Rule", "RuleAnswer", "RuleError",
    "When",
]  # fmt: skip


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; if not, ``reason`` holds what to install."""

    ready: bool
    reason: str = ""


class Options(msgspec.Struct, frozen=True):
    """The choices of a backend that a search may make; backends subclass it. Prints and parses as ``key=value,…``."""

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in msgspec.structs.asdict(self).items())


@dataclass(frozen=True)
class RuleAnswer:
    """What one rule of a backend says of a node: taken when ``reason`` is None."""

    rule: Rule
    reason: str | None


class Backend(ABC):
    """A way to compute regions. Stateless: what it makes is in the Compiled."""

    name: ClassVar[str]
    device_kinds: ClassVar[frozenset[str]]
    #: Whether compile runs in a child process, where a crash or a hang costs nothing but the answer.
    isolated: ClassVar[bool] = True
    #: Whether neighbouring calls that it takes may be compiled as one region; if not, only what its rules match.
    fuses: ClassVar[bool] = True

    @abstractmethod
    def availability(self) -> Availability:
        """Ready, or what to install. Must be cheap and must not import the runtime it asks about."""

    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """The rules; a call is supported when one of them takes it."""

    @abstractmethod
    def options(self) -> Sequence[Options]:
        """The choices a search may make; the first is the reference: full precision and defaults."""

    def settled(self, options: Options, device: Device) -> Options:
        """The options with what they leave open settled for an open device, which may be measured for it."""
        return options

    def remarks(self, device: Device) -> str:
        """What there is to say about how the backend was settled for an open device; empty when nothing is."""
        return ""

    @abstractmethod
    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        """Compile a region. The same graph, device kind and options give byte-identical results.

        Raises UnsupportedError or CompileError with the reason.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Versions of everything that shapes the result: part of every cache key."""

    def fingerprint_for(self, graph: Graph, info: DeviceInfo, options: Options) -> str:
        """The part of ``fingerprint`` that shapes this region: what its cache key is made from."""
        return self.fingerprint()

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        """None when some rule takes the call alone, whatever graph it stands in; else the most telling reason."""
        with self._named_in_errors():
            return _telling(rule.refuses(call, info) for rule in self.rules())

    def refuses_in(self, graph: Matchable, node: str, info: DeviceInfo) -> str | None:
        """None when some rule takes the node as a region of its own, judged in its graph; else the telling reason."""
        index = GraphIndex.of(graph)
        with self._named_in_errors():
            return _telling(rule.refuses_in(index, node, info) for rule in self.rules())

    def matches(self, graph: Matchable, info: DeviceInfo, allowed: Allowed | None = None) -> Iterator[Match]:
        """The regions of a graph that the rules take, rule by rule; they may overlap. RuleError for a faulty rule."""
        index = GraphIndex.of(graph)
        with self._named_in_errors():
            for rule in self.rules():
                yield from rule.matches(index, info, allowed)

    def explain(
        self, graph: Matchable, node: str, info: DeviceInfo, allowed: Allowed | None = None
    ) -> tuple[RuleAnswer, ...]:
        """What each rule says of a node. UsageError when the graph has no such node."""
        index = GraphIndex.of(graph)
        with self._named_in_errors():
            return tuple(RuleAnswer(rule, rule.explain(index, node, info, allowed)) for rule in self.rules())

    @contextmanager
    def _named_in_errors(self) -> Generator[None]:
        try:
            yield
        except RuleError as error:
            raise RuleError(f"backend {self.name}: {error}") from error


def _telling(answers: Iterable[str | None]) -> str | None:
    """None when an answer is yes; else the first reason that speaks of the operator, or else of the device."""
    reasons: list[str] = []
    for reason in answers:
        if reason is None:
            return None
        reasons.append(reason)
    telling = [reason for reason in reasons if not reason.startswith(NO_RULE)]
    here = [reason for reason in telling if not reason.startswith(OTHER_DEVICE)]
    return (here or telling or reasons or ["the backend has no rules"])[0]
