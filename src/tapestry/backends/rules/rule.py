"""What a rule is: it finds the regions of a graph that a backend takes, and says why it does not take others.

Not here: the kinds of rules, each in a module of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tapestry.backends.rules.index import GraphIndex
from tapestry.errors import UsageError
from tapestry.program.graph import Argument, Call, Graph
from tapestry.program.program import Program
from tapestry.runtime.device import DeviceInfo

#: Looks at one call on a device: None is yes, a string says why not.
When = Callable[[Call, DeviceInfo], str | None]

#: Which calls may be taken at all: None is yes, a string says why not.
Allowed = Callable[[Call], str | None]

#: What rules are matched on. An index is built once and used for many rules.
Matchable = Program | Graph | GraphIndex

#: A refusal of a rule that does not speak of the operator starts with this.
NO_RULE = "no rule for "
#: How the reason of a rule for another kind of device begins.
OTHER_DEVICE = "device "


class RuleError(UsageError):
    """A rule is written wrongly: a pattern that no operator fits, or a predicate that raises. Names the rule."""


@dataclass(frozen=True)
class Match:
    """A convex region that a rule takes: ``nodes`` in execution order, and what the rule's captures are bound to.

    A binding is a value (Ref), a tuple of values (a tensor list), or an attribute. A captured call is bound to its
    first result.
    """

    nodes: tuple[str, ...]
    bindings: Mapping[str, Argument] = field(hash=False)
    rule: Rule


@dataclass(frozen=True, eq=False)
class Scope:
    """One matching job: a graph, a device, and the calls that may be taken."""

    index: GraphIndex
    info: DeviceInfo
    allowed: Allowed | None = None
    _answers: dict[str, str | None] = field(default_factory=dict[str, "str | None"], repr=False)

    def bars(self, call: Call) -> str | None:
        """Why a call can be in no match here; None when it can be."""
        if call.name in self.index.keep_reasons:
            return self.index.keep_reasons[call.name]
        if self.allowed is None:
            return None
        if call.name not in self._answers:
            self._answers[call.name] = self.allowed(call)
        return self._answers[call.name]


class Rule(ABC):
    """Says which regions of a graph a backend takes, and why not others.

    Matches never hold a folded call, nor one that must keep its place on the source. Subclasses give ``refuses``,
    ``find`` and ``why_not``; users call ``refuses``, ``matches`` and ``explain``.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """What the rule is called in messages."""

    @abstractmethod
    def refuses(self, call: Call, info: DeviceInfo) -> str | None:
        """None when this rule takes the call alone, whatever graph it stands in, else the reason why not."""

    @abstractmethod
    def find(self, scope: Scope) -> Iterator[Match]:
        """All matches, in execution order of where they are found."""

    @abstractmethod
    def why_not(self, scope: Scope, call: Call) -> str | None:
        """None when some match holds the call; else the first thing that stands in the way, in words."""

    def matches(self, graph: Matchable, info: DeviceInfo, allowed: Allowed | None = None) -> Iterator[Match]:
        """All regions of ``graph`` that this rule takes; they may overlap (``select`` chooses).

        ``allowed`` looks at each call and gives None or the reason why it may not be taken.
        Raises RuleError when a predicate of the rule raises.
        """
        return self.find(Scope(GraphIndex.of(graph), info, allowed))

    def explain(self, graph: Matchable, node: str, info: DeviceInfo, allowed: Allowed | None = None) -> str | None:
        """None when some match holds the node; else why none does. UsageError when the graph has no such node."""
        scope = Scope(GraphIndex.of(graph), info, allowed)
        call = scope.index.call(node)
        return scope.bars(call) or self.why_not(scope, call)

    def refuses_in(self, graph: Matchable, node: str, info: DeviceInfo) -> str | None:
        """None when the rule takes the node as a region of its own, judged in its graph; else the reason."""
        return self.refuses(GraphIndex.of(graph).call(node), info)
