"""The variants of a call in order, the most telling first, under a budget. Not here: what they change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from tapestry.suite.variants.attributes import attribute_variants
from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.layout import layout_variants
from tapestry.suite.variants.products import WITH, product_variants
from tapestry.suite.variants.quiet import eager_or_none
from tapestry.suite.variants.shape_trial import one_thread
from tapestry.suite.variants.shapes import shape_variants
from tapestry.suite.variants.values import value_variants

_LOG = logging.getLogger(__name__)
#: The version of the generators: raised whenever what a name builds changes.
GENERATION = 1


@dataclass(frozen=True)
class Source:
    """A generator of variants, and the kinds that it makes."""

    kinds: frozenset[Kind]
    variants: Callable[[OpCall], Iterator[Variant]]


#: Where variants come from; those that list their variants at least cost first.
SOURCES = (
    Source(frozenset({Kind.VALUES, Kind.NONFINITE}), value_variants),
    Source(frozenset({Kind.LAYOUT}), layout_variants),
    Source(frozenset({Kind.ATTRIBUTES}), attribute_variants),
    Source(frozenset({Kind.SHAPE}), shape_variants),
    Source(frozenset({Kind.ATTRIBUTES, Kind.SHAPE}), product_variants),
)
#: How many of a kind come before the next of another.
_SHARE = {Kind.VALUES: 2.0, Kind.NONFINITE: 1.0, Kind.SHAPE: 1.0, Kind.LAYOUT: 1.0, Kind.ATTRIBUTES: 1.0}
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, NotImplementedError, ArithmeticError)
#: The most that one variant may take of the bytes.
_ONE_OF = 2
#: The most that the results of a variant may take. A view of a small tensor can be any size; devices write it out.
_RESULT_BYTES = 256 << 20


@dataclass(frozen=True)
class Budget:
    """What the variants of one call may take: their number, bytes of new inputs, and seconds to build them.

    Seconds are looked at between builds only, and are meant to be generous: below them the outcome depends on the
    call alone.
    """

    cases: int = 64
    bytes: int = 64 << 20
    seconds: float = 20.0


def derive(
    call: OpCall,
    budget: Budget | None = None,
    kinds: Collection[Kind] = frozenset(Kind),
    sources: tuple[Source, ...] = SOURCES,
) -> Iterator[tuple[Variant, OpCall]]:
    """The variants of a call that eager accepts, none equal in content to another or to the call.

    A variant of values whose results have other shapes (`nonzero`) is handed out as ``SHAPE``.
    """
    budget = budget or Budget()
    started = time.monotonic()
    known = {id(tensor): _tensor_digest(tensor) for tensor in call.tensors}
    seen = {_content(call, known)}
    shapes = _result_shapes(call)
    cases, used = 0, 0
    for variant in _in_turn(_all(call, sources, kinds), kinds):
        if cases >= budget.cases or time.monotonic() - started > budget.seconds:
            return
        with one_thread():  # most are tiny, and a caller's threads are left alone between them
            try:
                made = variant.build()
            except _REFUSALS:
                continue  # it was proposed, and there is no such call
            size, content = _new_bytes(call, made), _content(made, known)
            if content in seen or size > budget.bytes // _ONE_OF or used + size > budget.bytes:
                continue
            seen.add(content)
            own = _result_shapes(made)
        if own is None or _bytes_of(own) > _RESULT_BYTES:
            continue
        if own != shapes and variant.kind in (Kind.VALUES, Kind.NONFINITE):
            variant = replace(variant, kind=Kind.SHAPE)
            if Kind.SHAPE not in kinds:
                continue
        cases, used = cases + 1, used + size
        yield variant, made


def make(call: OpCall, name: str) -> OpCall:
    """One variant by its name, built without the others. LookupError when the call has none of that name."""
    variant = listing(call).get(name)
    if variant is None:
        raise LookupError(f"{call.target} has no variant {name!r} in generation {GENERATION}")
    return variant.build()


def listing(call: OpCall) -> dict[str, Variant]:
    """All variants of a call by name, none built: for whoever asks for many of them by name."""
    found: dict[str, Variant] = {}
    for variant in _all(call, SOURCES, frozenset(Kind)):
        found.setdefault(variant.name, variant)
    return found


def _all(call: OpCall, sources: tuple[Source, ...], kinds: Collection[Kind]) -> Iterator[Variant]:
    for source in sources:
        if source.kinds.isdisjoint(kinds):
            continue
        try:
            yield from source.variants(call)
        except _REFUSALS as error:  # a call that a generator was not made for costs its variants, not the suite
            words = f"{type(error).__name__}: {error}"
            _LOG.warning("no further %s variants of %s: %s", "/".join(sorted(source.kinds)), call.target, words)


def _in_turn(variants: Iterator[Variant], kinds: Collection[Kind]) -> list[Variant]:
    """By rank within a kind, the kinds in turn, so that any budget covers all of them; products apart."""
    held: dict[tuple[Kind, bool], list[Variant]] = {}
    for variant in variants:
        if variant.kind in kinds:
            held.setdefault((variant.kind, WITH in variant.name), []).append(variant)
    placed: list[tuple[float, int, Variant]] = []
    for order, (kind, product) in enumerate((kind, product) for kind in Kind for product in (False, True)):
        ranked = sorted(held.get((kind, product), []), key=lambda variant: (variant.rank, variant.name))
        placed += [(place / _SHARE[kind], order, variant) for place, variant in enumerate(ranked)]
    return [variant for _, _, variant in sorted(placed, key=lambda entry: entry[:2])]


def _new_bytes(call: OpCall, made: OpCall) -> int:
    old = {id(tensor) for tensor in call.tensors}
    return sum(tensor.untyped_storage().nbytes() for tensor in made.tensors if id(tensor) not in old)


def _result_shapes(call: OpCall) -> tuple[tuple[tuple[int, ...], torch.dtype] | None, ...] | None:
    """Shapes and dtypes of what eager gives; None where it refuses."""
    results = eager_or_none(call)
    return (
        None
        if results is None
        else tuple(None if result is None else (tuple(result.shape), result.dtype) for result in results)
    )


def _bytes_of(shapes: tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]) -> int:
    return sum(prod(entry[0]) * entry[1].itemsize for entry in shapes if entry is not None)


def _content(call: OpCall, known: dict[int, bytes]) -> bytes:
    """A digest of everything a call is made of; ``known`` holds those of tensors that were digested before."""
    digest = blake2b(digest_size=16)
    digest.update(repr([_plain(value) for value in call.args]).encode())
    digest.update(repr({name: _plain(call.kwargs[name]) for name in sorted(call.kwargs)}).encode())
    for tensor in call.tensors:
        digest.update(known.get(id(tensor)) or _tensor_digest(tensor))
    return digest.digest()


def _tensor_digest(tensor: Tensor) -> bytes:
    """Of the elements, strides and offset."""
    digest = blake2b(repr((tensor.dtype, tuple(tensor.shape))).encode(), digest_size=16)
    if tensor.layout == torch.strided and not tensor.is_quantized:
        digest.update(repr((tensor.stride(), tensor.storage_offset())).encode())
        digest.update(_bits(tensor))
    return digest.digest()


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]  # pyright: ignore[reportUnknownVariableType]
    return (type(value).__name__, repr(value))


def _bits(tensor: Tensor) -> bytes:
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype)
    dense.copy_(tensor.detach().reshape(-1))
    return dense.view(torch.uint8).numpy().tobytes()
