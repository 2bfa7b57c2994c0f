"""A closed graph as an exported program, which is what the converters of the runtimes read.

Every input of the graph, constants included, is a user input of the program, so nothing is a parameter, a buffer or
state that a converter could drop. Not here: capturing a model (program.capture).
"""

from __future__ import annotations

import warnings

import torch
from torch.export import ExportedProgram

from tapestry.backends.host.refusal import refused
from tapestry.program.fx import to_fx
from tapestry.program.graph import Graph, GraphInput


def export_graph(graph: Graph) -> ExportedProgram:
    """The graph as torch.export gives it: user inputs named as the graph's, one output each, in order.

    The inputs have the strides that they had at capture: a view that was legal then is legal now. Sizes are static.
    UnsupportedError when torch.export cannot take it.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own deprecations
        try:
            return torch.export.export(to_fx(graph), tuple(map(sample, graph.inputs)), strict=False)
        except Exception as error:
            raise refused("torch.export", error) from error


def sample(entry: GraphInput) -> torch.Tensor:
    """A tensor with an input's shape, strides and dtype. Its memory is never touched, and so costs nothing."""
    spec = entry.spec
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)
