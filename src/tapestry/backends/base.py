"""What a backend is: it turns regions into something a device runs, and says through rules what it supports.

Not here: any backend, and the registry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from tapestry.program.graph import Call, Graph
from tapestry.program.serial import overload_name
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import Compiled


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; if not, ``reason`` holds what to install."""

    ready: bool
    reason: str = ""


class Options(msgspec.Struct, frozen=True):
    """The choices of a backend that a search may make; backends subclass it. Prints and parses as ``key=value,…``."""

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in msgspec.structs.asdict(self).items())


#: Looks at one call on a device: None is yes, a string says why not.
When = Callable[[Call, DeviceInfo], str | None]


class Rule(ABC):
    """Says of the calls of a graph whether the backend takes them."""

    @abstractmethod
    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        """None when this rule takes the call, else the reason why not."""


@dataclass(frozen=True)
class Ops(Rule):
    """Single operators by overload name (``aten.linear.default``), with a condition."""

    names: frozenset[str]
    when: When | None = None

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        name = overload_name(call.target)
        if name not in self.names:
            return f"no rule for {name}"
        return self.when(call, info) if self.when else None


@dataclass(frozen=True)
class AnyOp(Rule):
    """Every operator that a condition lets through: for backends whose own importer is the judge."""

    when: When

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        return self.when(call, info)


class Backend(ABC):
    """A way to compute regions. Stateless: what it makes is in the Compiled."""

    name: ClassVar[str]
    device_kinds: ClassVar[frozenset[str]]
    #: Whether compile runs in a child process, where a crash or a hang costs nothing but the answer.
    isolated: ClassVar[bool] = True

    @abstractmethod
    def availability(self) -> Availability:
        """Ready, or what to install. Must be cheap and must not import the runtime it asks about."""

    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """The rules; a call is supported when one of them takes it."""

    @abstractmethod
    def options(self) -> Sequence[Options]:
        """The choices a search may make; the first is the reference: full precision and defaults."""

    @abstractmethod
    def compile(self, graph: Graph, info: DeviceInfo, options: Options) -> Compiled:
        """Compile a region. The same graph, device kind and options give byte-identical results.

        Raises UnsupportedError or CompileError with the reason.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Versions of everything that shapes the result: part of every cache key."""

    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        """None when some rule takes the call; else the most telling reason."""
        reasons: list[str] = []
        for rule in self.rules():
            reason = rule.refuses(call, info)
            if reason is None:
                return None
            reasons.append(reason)
        telling = [reason for reason in reasons if not reason.startswith("no rule for ")]
        return (telling or reasons or ["the backend has no rules"])[0]
