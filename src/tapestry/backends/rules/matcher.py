"""The backtracking matcher: all ways to lay an expression onto a graph from one value backwards.

Not here: where to start, and whether what was matched is a region (pattern).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from tapestry.backends.rules.arguments import default, same
from tapestry.backends.rules.convex import text
from tapestry.backends.rules.expression import (
    Attribute,
    Axis,
    Either,
    Expression,
    Item,
    Items,
    Literal,
    Op,
    Parameter,
    Wildcard,
    first_tensor,
)
from tapestry.backends.rules.rule import Scope
from tapestry.backends.rules.view import judged
from tapestry.program.graph import Argument, Call, Ref, refs_in


@dataclass(frozen=True)
class State:
    """What has been bound so far: expressions and names to values, and calls to the ``op`` that took them."""

    values: Mapping[Expression, Argument] = field(default_factory=dict[Expression, Argument])
    names: Mapping[str, Argument] = field(default_factory=dict[str, Argument])
    nodes: Mapping[str, Op] = field(default_factory=dict[str, Op])


@dataclass(eq=False)
class Trace:
    """The mismatch that was met furthest into a pattern, preferably one after ``focus`` was matched."""

    focus: str
    reason: str | None = None
    reached: tuple[bool, int] = (False, -1)

    def note(self, state: State, reason: str) -> None:
        """Keep ``reason`` if it was met further into the pattern than any before."""
        here = (self.focus in state.nodes, len(state.values))
        if here > self.reached:
            self.reached, self.reason = here, reason


@dataclass(frozen=True)
class Matcher:
    """Matches expressions in one scope. ``label`` names the rule in errors; ``trace`` collects mismatches if given."""

    scope: Scope
    label: str
    trace: Trace | None = None

    def match(self, expression: Expression, value: Argument, state: State, place: str) -> Iterator[State]:
        """Every way in which ``value``, found at ``place``, is what the expression stands for."""
        if expression in state.values:
            if same(state.values[expression], value):
                yield state
            else:
                bound = state.values[expression]
                self.miss(state, lambda: f"{place} is {shown(value)}, expected {shown(bound)} as before")
            return
        match expression:
            case Op():
                yield from self._result(expression, 0, expression, value, state, place)
            case Item():
                yield from self._result(expression.call, expression.index, expression, value, state, place)
            case Either():
                for option in expression.options:
                    for found in self.match(option, value, state, place):
                        yield from self._bound(expression, "", value, found, place)
            case Items():
                yield from self._items(expression, value, state, place)
            case _:
                yield from self._leaf(expression, value, state, place)

    def miss(self, state: State, reason: Callable[[], str]) -> None:
        """Note a mismatch for an explanation; the words are only made when one was asked for."""
        if self.trace is not None:
            self.trace.note(state, reason())

    def _bound(self, expression: Expression, name: str, value: Argument, state: State, place: str) -> Iterator[State]:
        if name in state.names and not same(state.names[name], value):
            bound = state.names[name]
            self.miss(state, lambda: f"{place} is {shown(value)}, but {name} is {shown(bound)} already")
            return
        names = {**state.names, name: value} if name else state.names
        yield State({**state.values, expression: value}, names, state.nodes)

    # ------------------------------------------------------------------------------------------------------- leaves

    def _leaf(self, expression: Expression, value: Argument, state: State, place: str) -> Iterator[State]:
        match expression:
            case Wildcard():
                reason = None if has_tensor(value) else f"{place} is {shown(value)}, expected a tensor"
            case Parameter():
                reason = self._not_constant(value, place)
            case Literal():
                reason = self._not_equal(expression.value, value, place)
            case Attribute():
                reason = self._not_attribute(expression, value, place)
            case _:
                raise TypeError(f"not a pattern expression: {expression!r}")
        if reason is not None:
            self.miss(state, lambda: reason)
        elif isinstance(expression, Literal):
            yield state  # equal constants need not be the same value
        else:
            yield from self._bound(expression, expression.name, value, state, place)

    def _not_constant(self, value: Argument, place: str) -> str | None:
        if not has_tensor(value):
            return f"{place} is {shown(value)}, expected a constant tensor"
        if all(self.scope.index.is_constant(ref) for ref in refs_in(value)):
            return None
        return f"{place} ({shown(value)}) is not a constant"

    def _not_equal(self, expected: Argument, value: Argument, place: str) -> str | None:
        if not isinstance(value, Ref):
            return None if same(value, expected) else f"{place} is {shown(value)}, expected {shown(expected)}"
        if not isinstance(expected, bool | int | float | complex):
            return f"{place} is {shown(value)}, expected {shown(expected)}"
        if not self.scope.index.is_constant(value):
            return f"{place} ({shown(value)}) is not a constant, expected {shown(expected)}"
        number = self.scope.index.number(value)
        if number is None:
            return f"{place} ({shown(value)}) is not known to hold one number, expected {shown(expected)}"
        if same(number, _stored(expected, self.scope.index.spec(value).dtype)):
            return None
        return f"{place} holds {shown(number)}, expected {shown(expected)}"

    def _not_attribute(self, expression: Attribute, value: Argument, place: str) -> str | None:
        if any(True for _ in refs_in(value)):
            return f"{place} is the tensor {shown(value)}, expected an attribute"
        when = expression.when
        reason = judged(self.label, (place,), lambda: when(value)) if when else None
        return None if reason is None else f"{place} is {shown(value)}: {reason}"

    # ------------------------------------------------------------------------------------------------------- inside

    def _items(self, expression: Items, value: Argument, state: State, place: str) -> Iterator[State]:
        if not isinstance(value, tuple) or len(value) != len(expression.entries):
            count = len(expression.entries)
            self.miss(state, lambda: f"{place} is {shown(value)}, expected a list of {count}")
            return
        pairs = [
            (entry, part, f"{place}[{number}]")
            for number, (entry, part) in enumerate(zip(expression.entries, value, strict=True))
        ]
        for found in self._all(pairs, state):
            yield from self._bound(expression, "", value, found, place)

    def _all(self, pairs: list[tuple[Expression, Argument, str]], state: State) -> Iterator[State]:
        if not pairs:
            yield state
            return
        (expression, value, place), rest = pairs[0], pairs[1:]
        for found in self.match(expression, value, state, place):
            yield from self._all(rest, found)

    def _result(
        self, wanted: Op, item: int, expression: Expression, value: Argument, state: State, place: str
    ) -> Iterator[State]:
        """``value`` as result ``item`` of a call that ``wanted`` matches; binds ``wanted`` and ``expression``."""
        call = self.scope.index.by_name.get(value.name) if isinstance(value, Ref) else None
        if not isinstance(value, Ref) or call is None:
            self.miss(state, lambda: f"{place} is {shown(value)}, expected the result of {wanted.operator}")
            return
        if value.item != item:
            self.miss(state, lambda: f"{place} is result {value.item} of {call.name}, expected result {item}")
            return
        whole = Ref(call.name)
        if wanted in state.values:
            calls = iter((state,)) if state.values[wanted] == whole else iter(())
            if state.values[wanted] != whole:
                other = state.values[wanted]
                self.miss(state, lambda: f"{place} is made by {call.name}, expected {shown(other)} as before")
        else:
            calls = self._call(wanted, call, state)
        for found in calls:
            if expression is wanted:
                yield found
            else:
                yield from self._bound(expression, "", value, found, place)

    def _call(self, wanted: Op, call: Call, state: State) -> Iterator[State]:
        reason = self._unlike(wanted, call, state)
        if reason is not None:
            self.miss(state, lambda: reason)
            return
        whole = Ref(call.name)
        for bound in self._bound(wanted, wanted.name, whole, state, call.name):
            started = State(bound.values, bound.names, {**bound.nodes, call.name: wanted})
            for pairs in self._pairings(wanted, call):
                yield from self._all(pairs, started)

    def _unlike(self, wanted: Op, call: Call, state: State) -> str | None:
        """Why the call cannot be the wanted one, before its operands are looked at."""
        slots = wanted.slots.get(call.target)
        if slots is None:
            return f"{call.name} is {call.target}, expected {wanted.operator}"
        if call.name in state.nodes:
            return f"{call.name} is matched twice: by {state.nodes[call.name]} and by {wanted}"
        barred = self.scope.bars(call)
        if barred is not None:
            return barred
        for name, expression in slots.items():
            if isinstance(expression, Axis):
                reason = self._other_axis(expression, call, name)
                if reason is not None:
                    return reason
        return None if wanted.others else _not_default(slots, call, self.scope.index.arguments(call))

    def _other_axis(self, expression: Axis, call: Call, name: str) -> str | None:
        arguments = self.scope.index.arguments(call)
        given, tensor = arguments[name], first_tensor(call.target)
        dims = given if isinstance(given, tuple) else (given,)
        subject = arguments[tensor] if tensor else None
        if not isinstance(subject, Ref) or len(dims) != 1 or not isinstance(dims[0], int):
            return f"{call.name}: {name} is {shown(given)}, expected one dimension"
        rank = max(len(self.scope.index.spec(subject).shape), 1)
        if dims[0] % rank == expression.dim % rank and -rank <= expression.dim < rank:
            return None
        return f"{call.name}: {name} is {dims[0]} of {rank} dimensions, expected {expression.dim}"

    def _pairings(self, wanted: Op, call: Call) -> Iterator[list[tuple[Expression, Argument, str]]]:
        """The expressions with the arguments of the call: as written, and with the first two exchanged."""
        arguments = self.scope.index.arguments(call)
        pairs = [
            (expression, arguments[name], f"{call.name}: {name}")
            for name, expression in wanted.slots[call.target].items()
            if not isinstance(expression, Axis)
        ]
        yield pairs
        if wanted.commutes and len(pairs) > 1 and same(arguments.get("alpha", 1), 1):  # add has a factor on one operand
            (a, x, at_x), (b, y, at_y), *rest = pairs
            if a is not b and not same(x, y):
                yield [(a, y, at_y), (b, x, at_x), *rest]


def _not_default(slots: Mapping[str, Expression], call: Call, arguments: Mapping[str, Argument]) -> str | None:
    for name, given in arguments.items():
        if name in slots:
            continue
        usual = default(call.target, name)
        if not same(given, usual):
            return f"{call.name}: {name} is {shown(given)}, expected {shown(usual)}"
    return None


def _stored(number: bool | int | float | complex, dtype: torch.dtype) -> bool | int | float | complex:
    """The number as a floating-point tensor holds it; as it is for other tensors, which hold no fraction."""
    if isinstance(number, int | float) and not isinstance(number, bool) and dtype.is_floating_point:
        return torch.tensor(number, dtype=dtype).item()
    return number


def has_tensor(value: Argument) -> bool:
    """Whether an argument is a tensor or a list that holds one."""
    return any(True for _ in refs_in(value))


def shown(value: Argument) -> str:
    """An argument as it is written: values by name, strings quoted."""
    if isinstance(value, Ref):
        return text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    return repr(value)
