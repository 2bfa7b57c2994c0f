"""Whether eager takes a call, by trying it on copies, and the sizes that a variant may have. Not here: what to try."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import torch

from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.quiet import eager_or_none

#: Elements of all inputs and of all results beyond which a call is not tried, and no variant is proposed but the
#: largest: 2^21 float32 elements are 8 MiB.
TRIAL_ELEMENTS = 1 << 21
#: A variant's inputs are at most 64 MiB.
VARIANT_BYTES = 64 << 20


def elements(call: OpCall) -> int:
    """The elements of all tensors of a call."""
    return sum(tensor.numel() for tensor in call.tensors)


def result_shapes(call: OpCall) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of what eager returns for a call, or None where it refuses."""
    results = eager_or_none(call)
    return None if results is None else tuple(tuple(result.shape) for result in results if result is not None)


def accepts(call: OpCall) -> bool:
    """Whether eager computes the call."""
    return result_shapes(call) is not None


def first_accepted(builds: Iterable[Callable[[], OpCall]]) -> OpCall:
    """The first call of several that can be built and that eager takes; the last one that can be built, if none is.

    Raises ``RuntimeError`` where none can be built.
    """
    built: OpCall | None = None
    for build in builds:
        try:
            built = build()
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        if accepts(built):
            return built
    if built is None:
        raise RuntimeError("no variant of this kind can be built for the call")
    return built


@contextmanager
def one_thread() -> Generator[None]:
    """Runs PyTorch on one thread: the trials are tiny, and waking other threads costs more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def contradicts(known: OpCall, call: OpCall) -> bool:
    """Whether the shape function refuses ``call`` although it takes ``known``, a call of the same overload."""
    return _on_meta(known) and not _on_meta(call)


def _on_meta(call: OpCall) -> bool:
    return eager_or_none(call.with_tensors(tuple(tensor.detach().to("meta") for tensor in call.tensors))) is not None
