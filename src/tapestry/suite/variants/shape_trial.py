"""Whether eager takes a call, by trying it on copies, and the sizes that a variant may have. Not here: what to try."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import cast

import torch

from tapestry.suite.variants.call import OpCall

#: Elements of all inputs and of all results beyond which a call is not tried, and no variant is proposed but the
#: largest: 2^21 float32 elements are 8 MiB.
TRIAL_ELEMENTS = 1 << 21
#: A variant's inputs are at most 64 MiB.
VARIANT_BYTES = 64 << 20


def elements(call: OpCall) -> int:
    """The elements of all tensors of a call."""
    return sum(tensor.numel() for tensor in call.tensors)


def result_shapes(call: OpCall) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of what eager returns for a call, or None where it refuses. The call's tensors are left as they are,
    and so is the state of the global random number generator.
    """
    mutable = call.target._schema.is_mutable
    tried = call.with_tensors(tuple(tensor.detach().clone() for tensor in call.tensors)) if mutable else call
    try:
        with torch.no_grad():
            result = _run(tried)
    except Exception:
        return None
    return tuple(tuple(tensor.shape) for tensor in _tensors(result))


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
    try:
        with torch.no_grad():
            _run(call.with_tensors(tuple(tensor.detach().to("meta") for tensor in call.tensors)))
    except Exception:
        return False
    return True


def _run(call: OpCall) -> object:
    if torch.Tag.nondeterministic_seeded not in call.target.tags:
        return call.target(*call.args, **call.kwargs)
    with torch.random.fork_rng(devices=[]):
        return call.target(*call.args, **call.kwargs)


def _tensors(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [tensor for entry in cast("tuple[object, ...]", result) for tensor in _tensors(entry)]
    return []
