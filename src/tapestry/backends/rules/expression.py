"""Pattern expressions over ATen: what a rule's author writes. Plain data; the matcher gives them their meaning.

An expression stands for one value (or one attribute). The same expression object used twice, or the same name used
twice, stands for the same value. Two different ``op`` expressions always match two different calls.

Not here: matching, and the conditions on a match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import EllipsisType
from typing import TypeAlias

import torch

from tapestry.backends.rules.arguments import plain, widened
from tapestry.backends.rules.rule import RuleError
from tapestry.backends.rules.signature import COMMUTATIVE, overloads, placed, required
from tapestry.program.graph import Argument


@dataclass(frozen=True, eq=False)
class Expression:
    """Base of all expressions."""

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The expressions directly inside this one."""
        return ()

    def walk(self) -> Iterator[Expression]:
        """This expression and all inside it, each once, outermost first."""
        seen: dict[Expression, None] = {}
        waiting: list[Expression] = [self]
        while waiting:
            found = waiting.pop()
            if found not in seen:
                seen[found] = None
                waiting.extend(reversed(found.parts))
        return iter(seen)


@dataclass(frozen=True, eq=False)
class Wildcard(Expression):
    """Any tensor or list of tensors that the match reads from outside."""

    name: str = ""

    def __str__(self) -> str:
        return self.name or "_"


@dataclass(frozen=True, eq=False)
class Parameter(Expression):
    """A tensor that is the same in every run."""

    name: str = ""

    def __str__(self) -> str:
        return f"param({self.name})"


@dataclass(frozen=True, eq=False)
class Literal(Expression):
    """An attribute equal to ``value``, or a constant tensor of one element equal to it."""

    value: Argument

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, eq=False)
class Attribute(Expression):
    """An argument that is not a tensor, with a condition on it: None is yes, a string says why not."""

    name: str = ""
    when: Callable[[Argument], str | None] | None = None

    def __str__(self) -> str:
        return f"attr({self.name})"


@dataclass(frozen=True, eq=False)
class Axis(Expression):
    """A dimension of the call's first tensor: −1 is the last, however the call counts it."""

    dim: int

    def __str__(self) -> str:
        return f"axis({self.dim})"


@dataclass(frozen=True, eq=False)
class Items(Expression):
    """A list of tensors or attributes, entry by entry."""

    entries: tuple[Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.entries

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.entries))}]"


@dataclass(frozen=True, eq=False)
class Op(Expression):
    """A call of ``operator``: ``aten.add`` is any overload that the arguments fit, ``aten.add.Tensor`` that one.

    Arguments that are not written must have their defaults, unless ``others`` lets them be anything.
    """

    operator: str
    arguments: tuple[Expression, ...] = ()
    attributes: tuple[tuple[str, Expression], ...] = ()
    others: bool = False
    commutes: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not self.slots:
            reasons = "; ".join(dict.fromkeys(self._unfit(target) or "" for target in overloads(self.operator)))
            raise RuleError(f"pattern {self}: {reasons}")
        nested = (inner for part in self.parts if isinstance(part, Either | Items) for inner in part.parts)
        if any(isinstance(inner, Axis) for inner in nested):
            raise RuleError(f"pattern {self}: expected axis() as an argument by itself, not inside another expression")

    def named(self, name: str) -> Op:
        """The expression with its call captured as ``name``."""
        return replace(self, name=name)

    def ordered(self) -> Op:
        """The expression with its operands in the order written, for an operator known to commute."""
        return replace(self, commutes=False)

    def commuting(self) -> Op:
        """The expression with its first two operands in either order, for an operator not known to commute."""
        return replace(self, commutes=True)

    def item(self, index: int) -> Item:
        """One result of a call that has several, counted from 0."""
        return Item(self, index)

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (*self.arguments, *(expression for _, expression in self.attributes))

    @cached_property
    def slots(self) -> dict[torch._ops.OpOverload, dict[str, Expression]]:
        """For each overload that the arguments fit, the expression of each argument by its schema name."""
        found: dict[torch._ops.OpOverload, dict[str, Expression]] = {}
        for target in overloads(self.operator):
            if self._unfit(target) is None:
                names = placed(target, self.arguments, ())
                written = dict(zip(names, self.arguments, strict=True)) | dict(self.attributes)
                found[target] = {name: _as_read(target, name, part) for name, part in written.items()}
        return found

    def _unfit(self, target: torch._ops.OpOverload) -> str | None:
        names = placed(target, self.arguments, [name for name, _ in self.attributes])
        if isinstance(names, str):
            return names
        given = {*names, *(name for name, _ in self.attributes)}
        missing = [name for name in required(target) if name not in given]
        if missing and not self.others:
            return f"{target} needs {', '.join(missing)} (end the arguments with ... to let them be anything)"
        return None

    def __str__(self) -> str:
        written = [*map(str, self.arguments), *(f"{name}={expression}" for name, expression in self.attributes)]
        return f"{self.operator}({', '.join([*written, *(['...'] if self.others else [])])})"


@dataclass(frozen=True, eq=False)
class Item(Expression):
    """One result of a call with several."""

    call: Op
    index: int

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.call,)

    def __str__(self) -> str:
        return f"{self.call}[{self.index}]"


@dataclass(frozen=True, eq=False)
class Either(Expression):
    """The first of the options that fits; the others are tried when the rest of the pattern does not fit then."""

    options: tuple[Expression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.options

    def __str__(self) -> str:
        return f"either({', '.join(map(str, self.options))})"


#: What may be written as an argument of ``op``: an expression, or a constant, or a list of such.
Written: TypeAlias = "Expression | Argument | list[Written] | tuple[Written, ...]"


def any_(name: str = "") -> Wildcard:
    """Any tensor, or list of tensors, from outside the match, captured under ``name``."""
    return Wildcard(name)


def param(name: str = "") -> Parameter:
    """A constant tensor: a parameter, a buffer that nothing writes, or what is folded from such."""
    return Parameter(name)


def const(value: Argument) -> Literal:
    """The constant ``value``, as an attribute or as a constant tensor of one element."""
    return Literal(plain(value))


def attr(name: str = "", when: Callable[[Argument], str | None] | None = None) -> Attribute:
    """Any argument that is not a tensor, captured under ``name``, for which ``when`` gives None."""
    return Attribute(name, when)


def axis(dim: int) -> Axis:
    """The dimension ``dim`` of the call's first tensor, whether the call counts it from the front or the back."""
    return Axis(dim)


def op(operator: str, /, *arguments: Written | EllipsisType, **attributes: Written) -> Op:
    """A call of ``operator``, its arguments by position or by the names in its schema.

    A last positional ``...`` lets all arguments that are not written be anything; without it they must have their
    defaults. Operators known to commute match their first two operands in either order (see ``ordered``).
    RuleError when torch has no such operator or no overload takes these arguments.
    """
    others = bool(arguments) and arguments[-1] is Ellipsis
    written = arguments[:-1] if others else arguments
    commutes = operator.startswith("aten.") and operator.split(".")[1] in COMMUTATIVE and len(written) > 1
    given = tuple(_expression(operator, value) for value in written)
    named = tuple((name, _expression(operator, value)) for name, value in attributes.items())
    return Op(operator, given, named, others, commutes)


def either(first: Written, second: Written, *more: Written) -> Either:
    """Any of the options, the first that fits: ``either(param("b"), None)`` is a bias or none."""
    return Either(tuple(_expression("either", value) for value in (first, second, *more)))


def optional(present: Op, operand: Expression | None = None) -> Either:
    """A call that may be there: when it is not, the value is its ``operand`` (if not given, its first argument)."""
    skipped = operand or next(iter(present.parts), None)
    if skipped is None or skipped not in present.parts:
        raise RuleError(f"optional({present}): expected an operand of the call to stand for it, got {skipped}")
    return Either((present, skipped))


def any_call(first: str, /, *more: str) -> Expression:
    """A call of one of these operators, whatever its arguments."""
    return Either((op(first, ...), *(op(operator, ...) for operator in more))) if more else op(first, ...)


def _expression(place: str, value: Written | EllipsisType) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, EllipsisType):
        raise RuleError(f"pattern {place}: expected ... as the last positional argument only")
    if isinstance(value, list | tuple):
        entries = tuple(_expression(place, entry) for entry in value)
        if all(isinstance(entry, Literal) for entry in entries):
            return Literal(tuple(entry.value for entry in entries if isinstance(entry, Literal)))
        return Items(entries)
    return Literal(value)


def _as_read(target: torch._ops.OpOverload, name: str, written: Expression) -> Expression:
    """Constants as the operator reads them: 1 is [1, 1] where it takes two sizes. Other expressions as they are."""
    if isinstance(written, Literal):
        return Literal(widened(target, name, written.value))
    if isinstance(written, Either) and all(isinstance(option, Literal) for option in written.options):
        return Either(tuple(_as_read(target, name, option) for option in written.options))
    return written


def output_calls(output: Expression) -> tuple[tuple[Op, int], ...]:
    """The calls, with the number of the result, that may make a pattern's output; RuleError when it may be no call."""
    if isinstance(output, Either):
        return tuple(entry for option in output.options for entry in output_calls(option))
    if isinstance(output, Op):
        return ((output, 0),)
    if isinstance(output, Item):
        return ((output.call, output.index),)
    raise RuleError(f"expected the output of a pattern to be made by an operator, got {output}")


def targets_of(calls: tuple[Op, ...]) -> frozenset[torch._ops.OpOverload]:
    """All overloads that one of the calls matches."""
    return frozenset(target for call in calls for target in call.slots)


@cache
def first_tensor(target: torch._ops.OpOverload) -> str | None:
    """The name of an operator's first argument that is a tensor."""
    entries = target._schema.arguments
    return next((entry.name for entry in entries if isinstance(entry.type, torch.TensorType)), None)
