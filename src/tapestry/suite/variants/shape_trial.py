"""Whether eager takes a call, by trying it on copies, and the sizes that a variant may have. Not here: what to try."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import cast

import torch
from torch._decomp import decomposition_table

from tapestry.numerics.arguments import flatten_result
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
    """Whether the shape function refuses ``call`` although it takes ``known``, a call of the same overload.

    Or torch's definition of the operator in simpler ones gives another shape for it and not for ``known``: kernels do
    not check everything (batch_norm reads a weight of more channels than there are).
    """
    return (_on_meta(known) and not _on_meta(call)) or (_as_defined(known) and not _as_defined(call))


def _on_meta(call: OpCall) -> bool:
    return eager_or_none(_meta(call)) is not None


def _as_defined(call: OpCall) -> bool:
    """Whether the definition gives a result of the shape that the shape function does."""
    definition = cast("Callable[..., object] | None", decomposition_table.get(call.target))
    if definition is None or call.target._schema.is_mutable:
        return False
    meta = _meta(call)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            defined = flatten_result(definition(*meta.args, **meta.kwargs))
    except Exception:  # the definition refuses, whatever it raises
        return False
    given = eager_or_none(meta)
    if not given or given[0] is None or not defined or defined[0] is None:
        return False
    return given[0].shape == defined[0].shape


def _meta(call: OpCall) -> OpCall:
    return call.with_tensors(tuple(tensor.detach().to("meta") for tensor in call.tensors))
