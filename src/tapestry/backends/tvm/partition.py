"""Takes a decomposed graph apart: what depends on constants only is prepared once on the host, the rest is compiled.

Not here: running the preparation (the executor does), and anything of TVM.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx

from tapestry.program.fx import from_fx
from tapestry.program.graph import Graph

aten = torch.ops.aten

#: Operators that make much from little: the device does that better than a stored constant.
_SPREADING = {aten.expand.default, aten.repeat.default, aten.full.default, aten.full_like.default}
#: Constants made by them up to this many elements are still prepared.
_SMALL = 4096
#: Scalars that are written into the kernels.
_LITERALS = {aten.scalar_tensor.default, aten.full.default}


@dataclass(frozen=True)
class Constant:
    """What fills a placeholder of the device part: region input ``index``, or result ``index`` of the preparation."""

    source: str
    index: int


@dataclass(frozen=True)
class Parts:
    """``device``: what is compiled; its placeholders are ``inputs`` (numbers of region inputs), then ``constants``.

    ``outputs[i]`` says where region output ``i`` comes from: result number of the device part (int), a region
    input's number wrapped in Constant("input"), or Constant("prepared"). ``preparation`` takes the region's
    constant inputs in order (all of them) and returns the prepared constants.
    """

    device: fx.GraphModule
    inputs: tuple[int, ...]
    constants: tuple[Constant, ...]
    outputs: tuple[int | Constant, ...]
    preparation: Graph

    @property
    def device_results(self) -> int:
        """How many results the device part has; 0 when there is nothing to compile."""
        return sum(isinstance(place, int) for place in self.outputs)


class Preparation:
    """The nodes that need no run-time input, and the results wanted of them."""

    def __init__(self, graph: Graph, module: fx.GraphModule) -> None:
        self._graph = graph
        self._module = module
        self.results: list[fx.Node] = []

    def constant(self, node: fx.Node) -> Constant:
        """The prepared constant for a static node, asked for once."""
        if node not in self.results:
            self.results.append(node)
        return Constant("prepared", self.results.index(node))

    def graph(self, static: Collection[fx.Node]) -> Graph:
        """The preparation as a Graph over the region's constant inputs."""
        out = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        constants = {entry.name for entry in self._graph.inputs if entry.constant}
        for node in self._module.graph.nodes:
            if node.op == "placeholder" and node.name in constants:
                copies[node] = out.node_copy(node)
            elif node in static and _is_empty(node):
                value = node.meta["val"]
                copies[node] = out.call_function(aten.zeros.default, (list(value.shape),), {"dtype": value.dtype})
                copies[node].meta["val"] = value
            elif node in static and node.op == "call_function":
                copies[node] = out.node_copy(node, lambda source: copies[source])
        out.output(tuple(copies[node] for node in self.results))
        out.eliminate_dead_code()
        return from_fx(fx.GraphModule(torch.nn.Module(), out), constants)


def partition(graph: Graph, module: fx.GraphModule) -> Parts:
    """Split ``module``, the decomposed ``graph``, into a preparation and a device part."""
    static = _static_nodes(graph, module)
    preparation = Preparation(graph, module)
    numbers = {entry.name: number for number, entry in enumerate(graph.inputs)}
    raw = {entry.name for entry in graph.inputs if entry.constant}
    out = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[int] = []
    constants: list[Constant] = []
    body = list(module.graph.nodes)
    for node in body:
        if node.op == "placeholder" and node not in static and node.users:
            copies[node] = out.node_copy(node)
            inputs.append(numbers[node.name])
    for node in body:
        if node in static and any(user not in static and user.op != "output" for user in node.users):
            constant = Constant("input", numbers[node.name]) if node.name in raw else preparation.constant(node)
            copies[node] = out.placeholder(f"c{len(constants)}")
            copies[node].meta["val"] = node.meta["val"]
            constants.append(constant)
    for node in body:
        if node.op == "call_function" and node not in static:
            copies[node] = out.node_copy(node, lambda source: copies[source])
    outputs, results = _outputs(body[-1], static, numbers, preparation)
    out.output(tuple(copies[node] for node in results))
    device = fx.GraphModule(torch.nn.Module(), out)
    return Parts(device, tuple(inputs), tuple(constants), outputs, preparation.graph(static))


def _outputs(
    output: fx.Node, static: Collection[fx.Node], numbers: dict[str, int], preparation: Preparation
) -> tuple[tuple[int | Constant, ...], list[fx.Node]]:
    places: list[int | Constant] = []
    results: list[fx.Node] = []
    for node in _returned(output):
        if node.op == "placeholder":
            places.append(Constant("input", numbers[node.name]))
        elif node in static:
            places.append(preparation.constant(node))
        else:
            if node not in results:
                results.append(node)
            places.append(results.index(node))
    return tuple(places), results


def _returned(output: fx.Node) -> list[fx.Node]:
    returned = output.args[0]
    entries = returned if isinstance(returned, tuple | list) else (returned,)
    return [entry for entry in entries if isinstance(entry, fx.Node)]


def _static_nodes(graph: Graph, module: fx.GraphModule) -> set[fx.Node]:
    """The nodes whose value no run-time input can change: from constants, from nothing, or without elements."""
    constants = {entry.name for entry in graph.inputs if entry.constant}
    static: set[fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            if node.name in constants or node.meta["val"].numel() == 0:
                static.add(node)
        elif node.op == "call_function" and (all(s in static for s in node.all_input_nodes) or _is_empty(node)):
            static.add(node)
    for node in reversed(list(module.graph.nodes)):
        if node in static and node.op == "call_function" and _belongs_on_device(node, static):
            static.remove(node)
    return static


def _is_empty(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _belongs_on_device(node: fx.Node, static: Collection[fx.Node]) -> bool:
    """Whether a static node at the border is cheaper to make on the device than to store."""
    users = [user for user in node.users if user.op != "output"]
    if not users or any(user in static for user in users) or node.target is operator.getitem:
        return False
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return False
    if node.target in _LITERALS and value.dim() == 0:
        return True
    return node.target in _SPREADING and value.numel() > _SMALL
