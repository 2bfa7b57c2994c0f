"""The constants of one compiled region, raw or prepared, named by content so that equal ones travel once.

Not here: where constant values come from (a program, a case), and holding them on a device (runtime.resident).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch

from tapestry.backends.transfer import to_storage
from tapestry.program.graph import Call, Graph, Ref, operands
from tapestry.program.interpret import run_graph
from tapestry.program.region import renamed
from tapestry.program.serial import encode_argument, loads
from tapestry.runtime.bind import ConstantBytes
from tapestry.runtime.module import Compiled, ConstantDecl


class ConstantSource(Protocol):
    """Where the values of a region's inputs come from, as far as they are the same in every run."""

    def is_constant(self, ref: Ref) -> bool: ...
    def tensor(self, ref: Ref) -> torch.Tensor: ...
    def digest(self, ref: Ref) -> str: ...


class RegionConstants:
    """The constants of one compiled region, named by content, so that equal ones travel once."""

    def __init__(self, constants: ConstantSource, inputs: Sequence[Ref], compiled: Compiled) -> None:
        self._constants = constants
        self._inputs = tuple(inputs)
        self._compiled = compiled

    def bytes_of(self, position: int) -> ConstantBytes:
        """The constant at this position of ``compiled.constants``: digest and bytes, made when asked for."""
        decl = self._compiled.constants[position]
        storage = self._compiled.tensors[decl.tensor].storage
        if decl.source == "input":
            content = self._constants.digest(self._inputs[decl.index])
        else:
            content = self._prepared_digests[decl.index]
        return ConstantBytes(f"{content}-{storage}", lambda: self._make(decl))

    def _make(self, decl: ConstantDecl) -> memoryview:
        tensor_decl = self._compiled.tensors[decl.tensor]
        if decl.source == "input":
            ref = self._inputs[decl.index]
            return to_storage(self._constants.tensor(ref), tensor_decl, ref.name)
        return to_storage(self._prepared(decl.index), tensor_decl, f"prepared constant {decl.index}")

    @cached_property
    def _preparation(self) -> Graph:
        return loads(self._compiled.preparation)

    @cached_property
    def _read(self) -> tuple[Ref, ...]:
        """What the preparation reads: the region's constant inputs, in order."""
        return tuple(ref for ref in self._inputs if self._constants.is_constant(ref))

    @cached_property
    def _prepared_digests(self) -> tuple[str, ...]:
        return result_digests(self._preparation, [self._constants.digest(ref) for ref in self._read])

    def _prepared(self, index: int) -> torch.Tensor:
        graph = only_result(self._preparation, index)
        (result,) = run_graph(graph, [self._constants.tensor(ref) for ref in self._read])
        return result


def result_digests(graph: Graph, inputs: Sequence[str]) -> tuple[str, ...]:
    """A digest for each result of a graph: of the calls it takes to make it and the digests of the inputs they read.

    So the same weight, transposed in two regions, has one name and travels once.
    """
    known = {Ref(entry.name): digest for entry, digest in zip(graph.inputs, inputs, strict=True)}
    for call in graph.calls:
        refs = {ref: Ref(known[ref]) for ref in operands(call)}
        plain = renamed(call, "", refs)
        text = f"{plain.target} {encode_argument(plain.args)} {[[k, encode_argument(v)] for k, v in plain.kwargs]}"
        for item in range(len(call.outputs)):
            known[Ref(call.name, item)] = hashlib.sha256(f"{text} {item}".encode()).hexdigest()
    return tuple(known[ref] for ref in graph.outputs)


def only_result(graph: Graph, index: int) -> Graph:
    """The part of a graph that makes one of its results."""
    wanted = {graph.outputs[index].name}
    calls: list[Call] = []
    for call in reversed(graph.calls):
        if call.name in wanted:
            calls.append(call)
            wanted.update(ref.name for ref in operands(call))
    return Graph(graph.inputs, tuple(reversed(calls)), (graph.outputs[index],))
