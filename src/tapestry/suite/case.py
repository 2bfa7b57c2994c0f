"""Case and Suite: carved operator tests, their tensors by content, and what was left out.

Not here: making them (carve), files (store), running them (replay).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import msgspec
import torch

from tapestry.program.graph import Graph
from tapestry.program.serial import loads

#: Marks an oracle output that equals the source's exactly: a copy, an index, an integer result.
SAME_AS_SOURCE = "="

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Case(msgspec.Struct, frozen=True):
    """One carved operator test.

    ``graph`` is the call as a closed graph (canonical JSON) whose inputs are ``inputs``: digests into the suite's
    tensors. ``source`` and ``oracle`` hold the digests of the results (None for a result that is no tensor);
    ``oracle`` is empty when the operator has none, and ``no_oracle`` says why. ``key`` is the key of the region
    that the call makes; every node in ``nodes`` has it. ``node``, ``input_set`` and ``call`` say where the values
    were seen; ``origin_op`` is what the user called.

    A carved case has an empty ``variant``. A derived one names the variant, its ``kind``, and the carved case it is
    made from (``base``): its tensors are not stored but made again whenever they are asked for, the same each time.
    ``blocking`` says whether it concerns the model that was carved: shapes and attributes of other keys, and NaN or
    infinities where none were seen, do not.
    """

    id: str
    key: str
    op: str
    origin_op: str
    source_line: str
    graph: str
    node: str
    nodes: tuple[str, ...]
    input_set: int
    call: int
    inputs: tuple[str, ...]
    source: tuple[str | None, ...]
    oracle: tuple[str | None, ...]
    no_oracle: str = ""
    variant: str = ""
    kind: str = ""
    base: str = ""
    blocking: bool = True

    def load_graph(self) -> Graph:
        return loads(self.graph.encode())


class LeftOut(msgspec.Struct, frozen=True):
    """Samples of an operator key that are not in the suite, and why."""

    key: str
    op: str
    samples: int
    reason: str


class SuiteInfo(msgspec.Struct, frozen=True):
    """Where a suite comes from, and what carving it cost. Bytes and seconds.

    ``dump_bytes`` is what all tensor arguments and results of every call would take, ``dump_bytes_activations``
    the same without parameters. ``carve_seconds`` is the run with sampling; ``finish_seconds`` the oracle after it.
    ``generation`` is the version of the generators that the derived cases were made by; 0 where there are none.
    """

    program: str
    graph_hash: str
    content_hash: str
    torch_version: str
    dump_bytes: int
    dump_bytes_activations: int
    eager_seconds: float
    carve_seconds: float
    finish_seconds: float
    input_sets: int
    calls: int
    generation: int = 0


class Tensors(NamedTuple):
    """The tensors of a case: inputs in graph order, the results of source and oracle (None without one)."""

    inputs: tuple[torch.Tensor, ...]
    source: tuple[torch.Tensor | None, ...]
    oracle: tuple[torch.Tensor | None, ...] | None


class Derived:
    """Makes the tensors of derived cases, and keeps the last ones made: they are asked for one after the other."""

    def __init__(self) -> None:
        self._last: tuple[Case, Tensors] | None = None

    def of(self, suite: Suite, case: Case) -> Tensors:
        """The tensors of a derived case. FormatError when this release does not know its variant."""
        if self._last is None or self._last[0] is not case:
            from tapestry.suite.derived import tensors_of  # the generators are needed by derived cases only

            self._last = case, tensors_of(suite, case)
        return self._last[1]


@dataclass(frozen=True)
class Suite:
    """Cases and their tensors by content digest."""

    info: SuiteInfo
    cases: tuple[Case, ...]
    tensors: Mapping[str, torch.Tensor]
    left_out: tuple[LeftOut, ...] = ()
    _derived: Derived = field(default_factory=Derived, compare=False, repr=False)

    @cached_property
    def by_id(self) -> Mapping[str, Case]:
        """The cases by id."""
        return {case.id: case for case in self.cases}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def inputs(self, case: Case) -> tuple[torch.Tensor, ...]:
        """The inputs of a case, with the strides they had."""
        if case.base:
            return self._derived.of(self, case).inputs
        graph = case.load_graph()
        return tuple(
            with_strides(self.tensors[digest], entry.spec.stride)
            for digest, entry in zip(case.inputs, graph.inputs, strict=True)
        )

    def source(self, case: Case) -> tuple[torch.Tensor | None, ...]:
        """What the source computed."""
        if case.base:
            return self._derived.of(self, case).source
        return tuple(None if digest is None else self.tensors[digest] for digest in case.source)

    def oracle(self, case: Case) -> tuple[torch.Tensor | None, ...] | None:
        """What the oracle computed (float64, exact integers), or None when the operator has no oracle."""
        if case.base:
            return self._derived.of(self, case).oracle
        if case.no_oracle:
            return None
        found: list[torch.Tensor | None] = []
        for source, digest in zip(case.source, case.oracle, strict=True):
            if digest is None or source is None:
                found.append(None)
            elif digest == SAME_AS_SOURCE:
                tensor = self.tensors[source]
                found.append(tensor.double() if tensor.is_floating_point() else tensor)
            else:
                found.append(self.tensors[digest])
        return tuple(found)


def with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The same values laid out with these strides (in elements): expanded, sliced and transposed ones too."""
    if tuple(tensor.stride()) == tuple(stride):
        return tensor
    shape = tuple(tensor.shape)
    if tensor.numel() == 0:
        return torch.empty_strided(shape, stride, dtype=tensor.dtype)
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    storage = torch.zeros(extent, dtype=tensor.dtype)
    places = torch.arange(extent).as_strided(shape, stride).reshape(-1)
    # Not every dtype can be written by index; integers of the same size can, and keep every bit.
    bits = _INTEGERS.get(tensor.dtype.itemsize, tensor.dtype)
    storage.view(bits)[places] = tensor.reshape(-1).view(bits)
    return storage.as_strided(shape, stride)
