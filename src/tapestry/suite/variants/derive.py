"""The variants of a call in order, the most telling first, under a budget. Not here: what they change."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tapestry.suite.variants.call import Kind, OpCall, Variant

#: The version of the generators: raised whenever what a name builds changes.
GENERATION = 1


@dataclass(frozen=True)
class Budget:
    """What the variants of one call may take: their number, bytes of inputs, and seconds to build them."""

    cases: int = 64
    bytes: int = 64 << 20
    seconds: float = 20.0


def derive(
    call: OpCall, budget: Budget | None = None, kinds: Collection[Kind] = frozenset(Kind)
) -> Iterator[tuple[Variant, OpCall]]:
    """The variants of a call that eager accepts, none equal to another or to the call."""
    yield from ()


def make(call: OpCall, name: str) -> OpCall:
    """One variant by its name. LookupError when there is none."""
    raise LookupError(f"there is no variant {name!r}")
