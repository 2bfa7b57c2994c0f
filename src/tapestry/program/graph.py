"""A closed graph of ATen calls: what a region looks like to a backend, and what is hashed, stored and sent.

Inputs and nodes are named by position (``i0``, ``n0``), so that two identical layers give equal graphs. Every
value is a Ref: an input, or one item of a node's result. There are no getitem nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, order=True)
class Ref:
    """A value: input ``name``, or result ``item`` of node ``name`` (0 for a node with one result)."""

    name: str
    item: int = 0


@dataclass(frozen=True)
class TensorSpec:
    """Shape, strides (both in elements) and dtype of a tensor, as eager PyTorch had it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


#: An argument of a call: a value, a constant, or a (nested) tuple of them. Lists become tuples.
Argument = (
    Ref | None | bool | int | float | complex | str
    | torch.dtype | torch.device | torch.layout | torch.memory_format | tuple["Argument", ...]
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One ATen call. ``outputs`` has one entry per result; None for a result that is not a tensor or is never made.

    ``is_tuple`` says that the operator returns a tuple or list even when it has a single entry.
    """

    name: str
    target: torch._ops.OpOverload
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    outputs: tuple[TensorSpec | None, ...]
    is_tuple: bool = False


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph. ``constant`` marks a parameter or another value that is the same in every run."""

    name: str
    spec: TensorSpec
    constant: bool = False


@dataclass(frozen=True)
class Graph:
    """Inputs, calls in execution order, and the values handed out. ``outputs`` may name inputs."""

    inputs: tuple[GraphInput, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Ref, ...]

    def spec(self, ref: Ref) -> TensorSpec:
        """The spec of a value; KeyError for one that the graph does not have."""
        for entry in self.inputs:
            if entry.name == ref.name:
                return entry.spec
        for call in self.calls:
            if call.name == ref.name:
                spec = call.outputs[ref.item]
                if spec is not None:
                    return spec
        raise KeyError(ref)


def refs_in(argument: object) -> Iterator[Ref]:
    """All values named in an argument, in order, with repeats."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple | list):
        for entry in argument:  # pyright: ignore[reportUnknownVariableType]
            yield from refs_in(entry)


def operands(call: Call) -> Iterator[Ref]:
    """All values a call reads, in order, with repeats."""
    yield from refs_in(call.args)
    for _, value in call.kwargs:
        yield from refs_in(value)
