"""A closed graph as an exported program, which is what the converters of the runtimes read.

Every input of the graph, constants included, is a user input of the program, so nothing is a parameter, a buffer or
state that a converter could drop. Not here: capturing a model (program.capture).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from tapestry.backends.host.operators import operators_kept
from tapestry.backends.host.refusal import refused
from tapestry.program.fx import to_fx
from tapestry.program.graph import Call, Graph, GraphInput, TensorSpec
from tapestry.program.serial import overload_name


def export_graph(graph: Graph) -> ExportedProgram:
    """The graph as torch.export gives it: user inputs named as the graph's, one output each, in order.

    The inputs have the strides that they had at capture: a view that was legal then is legal now. Sizes are static.
    UnsupportedError when torch.export cannot take it.
    """
    with torch.no_grad(), operators_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own deprecations
        try:
            return torch.export.export(to_fx(graph), tuple(map(sample, graph.inputs)), strict=False)
        except Exception as error:
            raise refused("torch.export", error) from error


def export_with_constants(graph: Graph, constants: Sequence[torch.Tensor]) -> ExportedProgram:
    """The same with these values for the constant inputs, in order, as the program's parameters.

    UnsupportedError when torch.export cannot take it.
    """
    module = with_constants(graph, constants)
    examples = tuple(sample(entry) for entry in graph.inputs if not entry.constant)
    with torch.no_grad(), operators_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(module, examples, strict=False)
        except Exception as error:
            raise refused("torch.export", error) from error


def with_constants(graph: Graph, constants: Sequence[torch.Tensor]) -> fx.GraphModule:
    """The graph as a module whose constants are parameters; its arguments are the other inputs, in order."""
    module = to_fx(graph)
    values = iter(constants)
    named = {entry.name: next(values) for entry in graph.inputs if entry.constant}
    nodes: Any = module.graph
    for node in list(nodes.nodes):
        if node.op != "placeholder" or node.name not in named:
            continue
        module.register_parameter(node.name, torch.nn.Parameter(named[node.name], requires_grad=False))
        with nodes.inserting_before(node):
            replacement = nodes.get_attr(node.name)
        node.replace_all_uses_with(replacement)
        nodes.erase_node(node)
    module.recompile()
    return module


def contiguous(graph: Graph) -> Graph:
    """The graph for inputs that are contiguous, as device memory holds them.

    A view that was legal with the strides at capture may not be legal then, so views become reshapes. The specs of
    results keep the strides of the capture.
    """
    return Graph(tuple(map(_contiguous, graph.inputs)), tuple(map(_reshaping, graph.calls)), graph.outputs)


def _contiguous(entry: GraphInput) -> GraphInput:
    plain = torch.empty(entry.spec.shape, dtype=entry.spec.dtype, device="meta")
    return GraphInput(entry.name, TensorSpec.of(plain), entry.constant)


def _reshaping(call: Call) -> Call:
    if overload_name(call.target) not in ("aten.view.default", "aten._unsafe_view.default"):
        return call
    return replace(call, target=torch.ops.aten.reshape.default)


def stand_ins(graph: Graph) -> list[torch.Tensor]:
    """Values to compile with when the real constants are not known: none that would make an operator trivial."""
    generator = torch.Generator().manual_seed(0)
    found: list[torch.Tensor] = []
    for entry in graph.inputs:
        if not entry.constant:
            continue
        tensor = sample(entry)
        if 0 in tensor.stride():
            tensor = tensor.contiguous()
        found.append(tensor.normal_(generator=generator) if tensor.is_floating_point() else tensor.zero_())
    return found


def sample(entry: GraphInput) -> torch.Tensor:
    """A tensor with an input's shape, strides and dtype. Its memory is never touched, and so costs nothing."""
    spec = entry.spec
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
