"""What a predicate sees of a possible match, and how its answer is taken.

Not here: ready-made predicates (predicates).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tapestry.backends.rules.index import GraphIndex
from tapestry.backends.rules.rule import RuleError
from tapestry.program.graph import Argument, Call, Ref, TensorSpec, operands
from tapestry.runtime.device import DeviceInfo


@dataclass(frozen=True, eq=False)
class MatchView:
    """What a predicate sees of a possible match. Names are the captures of the rule; an unknown one is a RuleError."""

    index: GraphIndex
    info: DeviceInfo
    nodes: tuple[str, ...]
    bindings: Mapping[str, Argument]

    def __contains__(self, name: str) -> bool:
        """Whether the capture is bound: False for one inside an optional part that is not there."""
        return name in self.bindings

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the match, in execution order."""
        return tuple(self.index.by_name[name] for name in self.nodes)

    @cached_property
    def inputs(self) -> tuple[Ref, ...]:
        """The values read from outside, in order of first use."""
        inside = set(self.nodes)
        reads = (ref for call in self.calls for ref in operands(call) if ref.name not in inside)
        return tuple(dict.fromkeys(reads))

    def value(self, name: str) -> Argument:
        """What is bound to ``name``: a Ref, a tuple of Refs, or an attribute."""
        if name not in self.bindings:
            raise RuleError(f"expected the name of a capture ({', '.join(self.bindings) or 'none'}), got {name!r}")
        return self.bindings[name]

    def ref(self, name: str) -> Ref:
        """The value bound to ``name``; RuleError when it is an attribute or a tensor list."""
        found = self.value(name)
        if not isinstance(found, Ref):
            raise RuleError(f"expected {name!r} to be bound to one tensor, got {found!r}")
        return found

    def spec(self, name: str) -> TensorSpec:
        """Shape, strides and dtype of the value bound to ``name``."""
        return self.index.spec(self.ref(name))

    def call(self, name: str) -> Call:
        """The call bound to ``name``, or that makes the value bound to it; RuleError for an input of the graph."""
        found = self.index.by_name.get(self.ref(name).name)
        if found is None:
            raise RuleError(f"expected {name!r} to be bound to the result of a node, got an input of the graph")
        return found

    def attribute(self, name: str, argument: str) -> Argument:
        """An argument of the call bound to ``name``, by the name in its schema; the default where it is not given."""
        call = self.call(name)
        arguments = self.index.arguments(call)
        if argument not in arguments:
            raise RuleError(f"operator {call.target} has no argument {argument!r}, only {', '.join(arguments)}")
        return arguments[argument]

    def is_constant(self, name: str) -> bool:
        """Whether the value is the same in every run: a parameter, an unwritten buffer, or folded from such."""
        return self.index.is_constant(self.ref(name))

    def users(self, name: str) -> tuple[str, ...]:
        """The nodes that read the value, inside the match and outside."""
        return self.index.readers.get(self.ref(name), ())

    def is_result(self, name: str) -> bool:
        """Whether the value leaves the graph."""
        return self.ref(name) in self.index.results


#: Looks at a possible match: None is yes, a string says why not.
Predicate = Callable[[MatchView], str | None]


def judged(label: str, nodes: tuple[str, ...], ask: Callable[[], str | None]) -> str | None:
    """The answer of a predicate of the rule ``label``; RuleError when it raises or answers anything else."""
    where = f"rule {label}, at {', '.join(nodes[:4])}{' …' if len(nodes) > 4 else ''}"
    try:
        answer = ask()
    except Exception as error:
        raise RuleError(f"{where}: its predicate raised {type(error).__name__}: {error}") from error
    if answer is None:
        return None
    if isinstance(answer, str) and answer:  # pyright: ignore[reportUnnecessaryIsInstance] - True slips in easily
        return answer
    raise RuleError(f"{where}: expected its predicate to give None (yes) or a reason, got {answer!r}")
