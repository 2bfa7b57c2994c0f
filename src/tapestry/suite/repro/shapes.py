"""Smaller shapes and plainer arguments of a single call, each kept only if the call still fails in the same way.

Sizes that belong together change together (suite.variants.shape_links). Elements are picked, not drawn: which rows are
needed is found by delta debugging along each size. Not here: values (values) and graphs of several calls (calls).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from tapestry.suite.repro.search import Search, minimal
from tapestry.suite.repro.subject import Subject, with_call
from tapestry.suite.variants.attributes_binding import changed, given, parameters
from tapestry.suite.variants.call import OpCall, tensors_in
from tapestry.suite.variants.shape_base import small
from tapestry.suite.variants.shape_links import Link, in_range, links, with_sizes

#: Sizes that are tried before halving: most faults show at one row already.
_FIRST = (1, 3)
#: What the trials of new sizes may raise on the way to a call.
_REFUSED = (RuntimeError, ValueError, IndexError, TypeError)


def drop_arguments(search: Search) -> None:
    """Leave arguments to their defaults, optional tensors among them, and shorten lists of tensors."""
    names = list(_droppable(search.current.call))
    if len(names) > 1:
        search.offer(_without(search.current, names), "arguments left to their defaults")
    for name in _droppable(search.current.call):
        if search.exhausted:
            return
        search.offer(_without(search.current, [name]), "arguments left to their defaults")
    for name, value in given(search.current.call).items():
        if isinstance(value, list | tuple) and len(list(tensors_in(value))) > 1:
            _shorten(search, name, cast("Sequence[object]", value))


def plain_layout(search: Search) -> None:
    """Lay tensors out one element after the other."""
    call = search.current.call
    if all(tensor.is_contiguous() for tensor in call.tensors):
        return
    kept = _Same()
    search.offer(
        _tried(search.current, lambda: call.with_tensors(tuple(kept.of(t, t.contiguous) for t in call.tensors))),
        "inputs laid out contiguously",
    )


def small_sizes(search: Search) -> None:
    """All sizes at once, where the call is large and its values matter little."""
    search.offer(_tried(search.current, lambda: small(search.current.call)), "smaller shapes")


def fewer_elements(search: Search) -> None:
    """Each size as small as it can be, the largest first."""
    for link in sorted(links(search.current.call), key=lambda link: -link.size):
        # A link's step is what growing takes; what it shrinks by may be less, and eager says so without a run.
        for step in dict.fromkeys((1, max(link.step, 1))):
            if search.exhausted:
                return
            if _shrink(search, replace(link, step=step)):
                break


def _shrink(search: Search, link: Link) -> bool:
    """Whether a smaller size was found."""
    start = search.current
    blocks = link.size // link.step
    if blocks < 2:
        return False

    def fails(kept: list[int]) -> bool:
        candidate = _tried(start, lambda: _picked(start.call, link, kept))
        return search.offer(candidate, "smaller shapes")

    for count in _FIRST:
        if count < blocks and fails(list(range(count))):
            blocks = count
            break
    minimal(list(range(blocks)), fails)
    return search.current is not start


def _picked(call: OpCall, link: Link, blocks: list[int]) -> OpCall:
    """The call with some blocks (of the link's step) of a linked size, in every tensor and argument."""
    indices = [block * link.step + inside for block in blocks for inside in range(link.step)]
    sized = with_sizes(call, {link: len(indices)}, "repro")
    kept = _Same()
    tensors: list[Tensor] = []
    for place, tensor in enumerate(call.tensors):
        axes = [(axis.dim, factor) for axis, factor in link.axes if axis.tensor == place]
        tensors.append(kept.of(tensor, lambda t=tensor, a=axes: _select(t, a, indices), tuple(axes)))
    return in_range(sized.with_tensors(tuple(tensors)), "repro")


def _select(tensor: Tensor, axes: Sequence[tuple[int, int]], indices: list[int]) -> Tensor:
    for dim, factor in axes:
        wanted = [index * factor + inside for index in indices for inside in range(factor)]
        if tensor.stride(dim) == 0:
            tensor = tensor.narrow(dim, 0, len(wanted))  # an expanded dimension stays one
        elif wanted == list(range(wanted[0], wanted[0] + len(wanted))):
            tensor = tensor.narrow(dim, wanted[0], len(wanted))
        else:
            tensor = tensor.index_select(dim, torch.tensor(wanted))
    return _tight(tensor) if axes else tensor


def _tight(tensor: Tensor) -> Tensor:
    """A copy without what lies around the tensor, its dimensions in the order in which they lay in memory."""
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    expanded = [dim for dim in range(tensor.dim()) if tensor.stride(dim) == 0 and tensor.shape[dim] > 1]
    source = tensor
    for dim in expanded:
        source = source.narrow(dim, 0, 1)
    dense = source.permute(order).clone(memory_format=torch.contiguous_format)
    dense = dense.permute([order.index(dim) for dim in range(tensor.dim())])
    return dense.expand(tensor.shape)


class _Same:
    """Makes one tensor of a tensor that a call reads at several places, where both places want the same."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, object], Tensor] = {}

    def of(self, tensor: Tensor, make: Callable[[], Tensor], how: object = ()) -> Tensor:
        """What ``make()`` gives, made once for a tensor and ``how``."""
        key = (id(tensor), how)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def _tried(subject: Subject, make: Callable[[], OpCall]) -> Subject | None:
    try:
        call = make()
    except _REFUSED:
        return None
    return with_call(subject, call)


def _droppable(call: OpCall) -> Iterator[str]:
    """Arguments that may be left out: those with a default that have another value now. The last ones first."""
    now = given(call)
    for row in reversed(parameters(call.target)):
        if row.name in now and row.has_default and not _is_default(now[row.name], row.default):
            yield row.name


def _is_default(value: object, default: object) -> bool:
    if isinstance(value, Tensor) or isinstance(default, Tensor):
        return False
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return list(cast("Sequence[object]", value)) == list(cast("Sequence[object]", default))
    return value == default and type(value) is type(default)


def _without(subject: Subject, names: Sequence[str]) -> Subject | None:
    return _tried(subject, lambda: changed(subject.call, {}, names))


def _shorten(search: Search, name: str, entries: Sequence[object]) -> None:
    start = search.current

    def fails(kept: list[int]) -> bool:
        shorter: Mapping[str, object] = {name: [entries[place] for place in kept]}
        return search.offer(_tried(start, lambda: changed(start.call, shorter)), "tensors of a list left out")

    minimal(list(range(len(entries))), fails)
