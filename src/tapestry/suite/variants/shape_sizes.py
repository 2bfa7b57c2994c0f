"""Variants in which linked sizes change: nothing, one, not divisible, around a workgroup, more than a dispatch covers.

Not here: how sizes are linked, ranks, broadcasting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

import torch

from tapestry.suite.variants.call import Kind, OpCall, Variant
from tapestry.suite.variants.meaning import Role, tensor_meanings
from tapestry.suite.variants.shape_data import cast_like, resized
from tapestry.suite.variants.shape_links import Link, with_sizes
from tapestry.suite.variants.shape_trial import (
    TRIAL_ELEMENTS,
    VARIANT_BYTES,
    first_accepted,
    result_shapes,
)

#: Sizes of every link by itself: nothing, one, few, below and past a vector of 4.
_EACH_FIRST = (0, 1, 3)
#: Sizes that the links take in turn, each link another one, so that every link meets every class of size within a few
#: variants: odd, one past a warp or workgroup, one below it.
_TURNS = (5, 2, 7, 33, 13, 65, 17, 129, 127, 257)
#: A long row: no multiple of a block, and more than one dispatch of 65,535 or an index of 16 bits covers.
_LONG = (4_099, 65_537)
#: Counts at which a byte and 16 bits are 0 again.
_WRAPPING = (256, 65_536)
#: More elements than 2^22, of which no power of two is a divisor.
_MANY = (1 << 22) + 3


@dataclass(frozen=True)
class Sized:
    """Sizes for the links of a call, under a name."""

    name: str
    rank: int
    sizes: Mapping[Link, int]
    fallbacks: tuple[Mapping[Link, int], ...] = ()


def size_variants(call: OpCall, linked: tuple[Link, ...]) -> tuple[Iterator[Variant], ...]:
    """Variants of other sizes, for a call whose links are known, by what they change: each link by itself, all at
    once, one of them or the number of elements very large.
    """
    return (
        _variants(call, _each(linked)),
        _variants(call, _together(call, linked)),
        chain(
            _very_many_equal(call, linked),
            _variants(call, _very_long(call, linked)),
            _reductions(call, linked),
            _many(call),
        ),
    )


def label(link: Link) -> str:
    """A link by its first axis or entry: ``0.1`` is the second dim of the first tensor."""
    axis, factor = link.axes[0]
    return f"{axis.tensor}.{axis.dim}" + (f"/{factor}" if factor != 1 else "")


def _variants(call: OpCall, proposals: Iterator[Sized]) -> Iterator[Variant]:
    for proposal in proposals:
        if _numel(call, proposal.sizes) <= TRIAL_ELEMENTS:
            yield _variant(call, proposal)


def _very_long(call: OpCall, linked: tuple[Link, ...]) -> Iterator[Sized]:
    """The first and the last link of the first tensor before the others; more than a dispatch covers first."""
    own = [link for link in linked if link.axes[0][0].tensor == 0]
    first = own[:1] + own[-1:]
    for size in _LONG:
        for link in linked:
            rank = (1 if size > 65_535 else 3) if link in first else 4
            yield Sized(f"{label(link)}={size}", rank, _long(call, linked, link, size))


def _each(linked: tuple[Link, ...]) -> Iterator[Sized]:
    """Each link by itself at the sizes that are most often forgotten."""
    for link in linked:
        for size in _EACH_FIRST:
            if size != link.size:
                yield Sized(f"{label(link)}={size}", min(size, 2), {link: _fitting(link, size)})
        if link.step > 1:
            yield Sized(f"{label(link)}={2 * link.step}", 2, {link: 2 * link.step})


def _together(call: OpCall, linked: tuple[Link, ...]) -> Iterator[Sized]:
    """All links at once: alike, all different, in turns."""
    if not linked:
        return
    for size in (0, 1, 2, 3) if len(linked) > 1 else ():
        sizes = {link: _fitting(link, size) for link in linked}
        yield Sized(f"all={size}", 2, sizes, _fallbacks(sizes))
    sizes = {link: _fitting(link, 3 + 2 * place) for place, link in enumerate(linked)}
    yield Sized("distinct", 0, sizes, _fallbacks(sizes))
    for turn in range(len(_TURNS)):
        sizes = {link: _TURNS[(turn + 3 * place) % len(_TURNS)] for place, link in enumerate(linked)}
        while _numel(call, sizes) > TRIAL_ELEMENTS // 16 and max(sizes.values()) > 4:
            longest = max(sizes, key=lambda link: sizes[link])
            sizes[longest] = max(3, sizes[longest] // 4)
        sizes = {link: _fitting(link, size) for link, size in sizes.items()}
        yield Sized(f"turn {turn}", 3, sizes, _fallbacks(sizes))


def _long(call: OpCall, linked: tuple[Link, ...], long: Link, size: int) -> dict[Link, int]:
    """One link long, the others as they are or as small as needed."""
    sizes = {link: _fitting(link, size) if link == long else link.size for link in linked}
    for ceiling in (16, 4, 2, 1):
        if _numel(call, sizes) <= TRIAL_ELEMENTS // 4:
            break
        sizes = {link: old if link == long else min(old, _fitting(link, ceiling)) for link, old in sizes.items()}
    return sizes


def _fitting(link: Link, size: int) -> int:
    """The size, or the next multiple of what it must be a multiple of."""
    return -(-size // link.step) * link.step


def _numel(call: OpCall, sizes: Mapping[Link, int]) -> int:
    shapes = [list(tensor.shape) for tensor in call.tensors]
    for link, size in sizes.items():
        for axis, factor in link.axes:
            shapes[axis.tensor][axis.dim] = factor * size
    entries = [factor * size for link, size in sizes.items() for _, factor in link.entries]
    # a size argument may be a size of the result: count it against the largest tensor
    return sum(prod(shape) for shape in shapes) + max(entries, default=0)


def _variant(call: OpCall, proposal: Sized) -> Variant:
    name = f"shape {proposal.name}"
    if not proposal.fallbacks:
        return Variant(name, Kind.SHAPE, proposal.rank, lambda: with_sizes(call, proposal.sizes, name))
    choices = [lambda s=sizes: with_sizes(call, s, name) for sizes in (proposal.sizes, *proposal.fallbacks)]
    return Variant(name, Kind.SHAPE, proposal.rank, lambda: first_accepted(choices))


def _fallbacks(sizes: Mapping[Link, int]) -> tuple[Mapping[Link, int], ...]:
    """Where the sizes do not go together, as a kernel larger than its image: those of the first tensor alone, larger
    or as they are, then of the other tensors alone, then the first link alone.
    """
    first = {link: size for link, size in sizes.items() if link.axes[0][0].tensor == 0}
    larger = {link: _fitting(link, size + link.size) for link, size in first.items()}
    rest = {link: size for link, size in sizes.items() if link not in first}
    alone = dict(list(sizes.items())[:1])
    return tuple(choice for choice in (first, larger, rest, alone) if choice and choice != sizes)


def _reductions(call: OpCall, linked: tuple[Link, ...]) -> Iterator[Variant]:
    """Rows of ones: as many as wrap a byte or 16 bits, and long ones in 16-bit floats, whose own sums stop counting."""
    last = next((link for link in reversed(linked) if link.axes[0][0].tensor == 0), None)
    ends = dict.fromkeys(part for part in (last, linked[0] if linked else None) if part is not None)
    for size in _WRAPPING:
        for link in ends:
            name = f"shape {label(link)}={size} ones"
            sizes = _long(call, linked, link, size)
            if _numel(call, sizes) > TRIAL_ELEMENTS:
                continue
            yield Variant(name, Kind.SHAPE, 2, lambda s=sizes, n=name: _ones(with_sizes(call, s, n), None))
    floats = [tensor for tensor in call.tensors if tensor.is_floating_point()]
    if not floats:
        return
    for dtype in (torch.bfloat16, torch.float16):
        for link in ends:
            name = f"shape {label(link)}=4099 ones {str(dtype).removeprefix('torch.')}"
            sizes = _long(call, linked, link, _LONG[0])
            if _numel(call, sizes) > TRIAL_ELEMENTS:
                continue
            yield Variant(name, Kind.SHAPE, 2, lambda s=sizes, n=name, d=dtype: _ones(with_sizes(call, s, n), d))


def _very_many_equal(call: OpCall, linked: tuple[Link, ...]) -> Iterator[Variant]:
    """Millions of equal float32 added up to one: a single running sum stops growing, and is percents off."""
    own = [link for link in linked if link.axes[0][0].tensor == 0]
    for link in reversed(own) if any(tensor.dtype == torch.float32 for tensor in call.tensors) else ():
        sizes = _long(call, linked, link, _MANY)
        if _numel(call, sizes) * 4 <= VARIANT_BYTES // 2 and _is_reduced(call, link):
            name = f"shape {label(link)}={_MANY} equal"
            yield Variant(name, Kind.SHAPE, 1, lambda s=sizes, n=name: _filled(with_sizes(call, s, n), 0.1))
            return


def _is_reduced(call: OpCall, link: Link) -> bool:
    """Whether the result's shape does not tell how long the link is."""
    shapes = [result_shapes(with_sizes(call, {link: _fitting(link, size)}, "trial")) for size in (5, 11)]
    return shapes[0] is not None and shapes[0] == shapes[1]


def _filled(call: OpCall, value: float) -> OpCall:
    data = {meaning.place for meaning in tensor_meanings(call) if meaning.role == Role.DATA}
    return call.with_tensors(
        tuple(
            torch.full_like(tensor, value) if place in data and tensor.is_floating_point() else tensor
            for place, tensor in enumerate(call.tensors)
        )
    )


def _ones(call: OpCall, dtype: torch.dtype | None) -> OpCall:
    """All data 1, floats of another dtype where one is given."""
    data = {meaning.place for meaning in tensor_meanings(call) if meaning.role == Role.DATA}
    return call.with_tensors(
        tuple(
            torch.ones(tensor.shape, dtype=dtype if dtype and tensor.is_floating_point() else tensor.dtype)
            if place in data
            else cast_like(tensor, dtype)
            if dtype and tensor.is_floating_point()
            else tensor
            for place, tensor in enumerate(call.tensors)
        )
    )


def _many(call: OpCall) -> Iterator[Variant]:
    """More than 2^22 elements in one and two dims, where all tensors have the shape of the result."""
    proper = [place for place, tensor in enumerate(call.tensors) if tensor.dim() and tensor.numel() > 1]
    if not proper or not _is_elementwise(call, proper):
        return
    width = sum(call.tensors[place].element_size() for place in proper)
    for shape in ((_MANY,), (65_537, 65)):
        if prod(shape) * width <= VARIANT_BYTES:
            name = f"shape many {'x'.join(map(str, shape))}"
            yield Variant(name, Kind.SHAPE, 5, lambda s=shape, n=name: flattened(call, proper, s, n))


def _is_elementwise(call: OpCall, proper: list[int]) -> bool:
    shapes = ((7,), (3, 5))
    return all(result_shapes(flattened(call, proper, shape, "trial")) == (shape,) for shape in shapes)


def flattened(call: OpCall, places: list[int], shape: tuple[int, ...], name: str) -> OpCall:
    """The call with the tensors at ``places`` all of one shape."""
    return call.with_tensors(
        tuple(
            resized(tensor, shape, f"{name} {place}") if place in places else tensor
            for place, tensor in enumerate(call.tensors)
        )
    )
