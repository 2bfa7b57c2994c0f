"""A graph as an ONNX model, by torch.onnx's exporter: the same graph gives the same bytes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from tapestry.backends.host.exported import export_graph
from tapestry.backends.host.operators import operators_kept
from tapestry.backends.host.refusal import refused
from tapestry.backends.onnxruntime.load import ONNX_TYPES
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph
from tapestry.program.serial import dtype_name

_read_translations = ONNXRegistry.from_torchlib


def to_onnx(graph: Graph, outputs: Sequence[str], constants: Collection[str]) -> tuple[bytes, frozenset[str]]:
    """The model's bytes and the names of the constants that it reads.

    Inputs are named as the graph's, outputs as given; ``constants`` become initialisers without data.
    UnsupportedError with the exporter's reason, or when it has changed a result's type.
    """
    program = export_graph(graph)
    with torch.no_grad(), operators_kept(), _quiet(), _translations_kept():
        try:
            exported = torch.onnx.export(
                program,
                dynamo=True,
                optimize=True,
                verbose=False,
                input_names=[entry.name for entry in graph.inputs],
                output_names=list(outputs),
            )
            if exported is None:
                raise RuntimeError("it gave no program")
            model: Any = exported.model_proto
        except Exception as error:
            raise refused("torch.onnx", error) from error
    _check(model, graph)
    _strip(model)
    read = _without_data(model, frozenset(constants))
    return model.SerializeToString(deterministic=True), read


def _check(model: Any, graph: Graph) -> None:
    for place, (output, ref) in enumerate(zip(model.graph.output, graph.outputs, strict=True)):
        expected, kind = dtype_name(graph.spec(ref).dtype), output.type.tensor_type.elem_type
        if kind != ONNX_TYPES[expected]:
            got = next((name for name, number in ONNX_TYPES.items() if number == kind), f"of ONNX's type {kind}")
            raise UnsupportedError(f"torch.onnx makes result {place} {got}, expected {expected}")


@contextmanager
def _translations_kept() -> Generator[None]:
    """Let the exporter read its translations once: it would parse all their sources anew, most of what it takes."""
    kind: Any = ONNXRegistry
    own = kind.__dict__["from_torchlib"]
    kind.from_torchlib = staticmethod(_translations)
    try:
        yield
    finally:
        kind.from_torchlib = own


@cache
def _translations(opset_version: int) -> ONNXRegistry:
    return _read_translations(opset_version)


@contextmanager
def _quiet() -> Generator[None]:
    """Without what the exporter tells of itself: each refusal is raised, and missing torchvision is nothing to us."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _strip(model: Any) -> None:
    """Take out what names files, lines and modules: it is no part of the computation and differs between machines."""
    del model.metadata_props[:]
    for graph in (model.graph, *model.functions):
        del graph.metadata_props[:]
        graph.doc_string = ""
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*graph.value_info, *(() if graph is not model.graph else (*graph.input, *graph.output))):
            del value.metadata_props[:]
            value.doc_string = ""


def _without_data(model: Any, constants: frozenset[str]) -> frozenset[str]:
    """Turn the constants from inputs into initialisers whose data is external; gives those that something reads."""
    from onnx import StringStringEntryProto, TensorProto

    graph = model.graph
    read = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    for function_graph in _subgraphs(graph):
        read.update(name for node in function_graph.node for name in node.input)
    used = constants & read
    for value in graph.input:
        if value.name not in used:
            continue
        shape = value.type.tensor_type
        entry = TensorProto(
            name=value.name,
            data_type=shape.elem_type,
            dims=[dim.dim_value for dim in shape.shape.dim],
            data_location=TensorProto.EXTERNAL,
        )
        entry.external_data.append(StringStringEntryProto(key="location", value=value.name))
        graph.initializer.append(entry)
    kept = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(kept)
    return frozenset(used)


def _subgraphs(graph: Any) -> Generator[Any]:
    """The graphs inside a graph's nodes (If, Loop), at any depth."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield inner
                    yield from _subgraphs(inner)
