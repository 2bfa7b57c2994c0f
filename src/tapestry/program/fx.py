"""Graph <-> torch.fx.GraphModule: for tools that read or rewrite FX (tracing, decomposition, importers).

Not a capture: the calls are taken as they are, and nothing is traced or decomposed here.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument as FxArgument

from tapestry.errors import UnsupportedError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec


def to_fx(graph: Graph) -> fx.GraphModule:
    """The same graph as FX: placeholders named as the inputs, one ``call_function`` per call, getitem for tuples.

    The output node holds a flat tuple, one entry per graph output. Nodes carry no ``meta``.
    """
    out = fx.Graph()
    values: dict[Ref, fx.Node] = {}
    for entry in graph.inputs:
        values[Ref(entry.name)] = out.placeholder(entry.name)
    for call in graph.calls:
        args = tuple(_to_fx_argument(value, values) for value in call.args)
        kwargs = {name: _to_fx_argument(value, values) for name, value in call.kwargs}
        node = out.create_node("call_function", call.target, args, kwargs, name=call.name)
        if not call.is_tuple:
            values[Ref(call.name)] = node
            continue
        for item, spec in enumerate(call.outputs):
            if spec is not None:
                values[Ref(call.name, item)] = out.call_function(operator.getitem, (node, item))
    out.output(tuple(values[ref] for ref in graph.outputs))
    return fx.GraphModule(torch.nn.Module(), out)


def from_fx(module: fx.GraphModule, constants: Collection[str] = ()) -> Graph:
    """The Graph of an FX module whose nodes carry ``meta["val"]`` (fake or real tensors), renamed by position.

    ``constants`` names the placeholders to mark as constant. Raises UnsupportedError for anything but
    placeholders, ATen calls, getitem and one output of tensors (no attributes, no symbolic sizes).
    """
    inputs: list[GraphInput] = []
    calls: list[Call] = []
    values: dict[fx.Node, Ref] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            name = f"i{len(inputs)}"
            values[node] = Ref(name)
            inputs.append(GraphInput(name, _spec(node.meta["val"]), node.name in constants))
        elif node.op == "call_function" and node.target is operator.getitem:
            source, item = cast("tuple[fx.Node, int]", node.args)
            values[node] = Ref(values[source].name, item)
        elif node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            values[node] = Ref(f"n{len(calls)}")
            calls.append(_call(node, node.target, f"n{len(calls)}", values))
        elif node.op == "output":
            return Graph(tuple(inputs), tuple(calls), _outputs(node, values))
        else:
            raise UnsupportedError(f"expected a closed ATen graph, got node {node.format_node()}")
    raise UnsupportedError("expected an FX graph with an output node, got none")


def _call(node: fx.Node, target: torch._ops.OpOverload, name: str, values: dict[fx.Node, Ref]) -> Call:
    result = node.meta["val"]
    is_tuple = isinstance(result, tuple | list)
    results = cast("tuple[object, ...]", tuple(result) if is_tuple else (result,))
    outputs = tuple(_spec(value) if isinstance(value, torch.Tensor) else None for value in results)
    args = tuple(_from_fx_argument(value, values) for value in node.args)
    kwargs = tuple((key, _from_fx_argument(value, values)) for key, value in node.kwargs.items())
    return Call(name, target, args, kwargs, outputs, is_tuple)


def _outputs(node: fx.Node, values: dict[fx.Node, Ref]) -> tuple[Ref, ...]:
    returned = node.args[0]
    entries = returned if isinstance(returned, tuple | list) else (returned,)
    refs: list[Ref] = []
    for entry in entries:
        if not isinstance(entry, fx.Node):
            raise UnsupportedError(f"expected tensors as outputs, got {entry!r}")
        refs.append(values[entry])
    return tuple(refs)


def _spec(value: object) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(f"expected a tensor, got {type(value).__name__}")
    if any(isinstance(size, torch.SymInt) for size in value.shape):
        raise UnsupportedError(f"expected static sizes, got {tuple(value.shape)}")
    return TensorSpec.of(value)


def _to_fx_argument(value: Argument, values: dict[Ref, fx.Node]) -> FxArgument:
    if isinstance(value, Ref):
        return values[value]
    if isinstance(value, tuple):
        return [_to_fx_argument(entry, values) for entry in value]
    return value


def _from_fx_argument(value: object, values: dict[fx.Node, Ref]) -> Argument:
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, tuple | list):
        return tuple(_from_fx_argument(entry, values) for entry in cast("list[object]", value))
    if value is None or isinstance(
        value, bool | int | float | complex | str | torch.dtype | torch.device | torch.layout | torch.memory_format
    ):
        return value
    raise UnsupportedError(f"expected a plain argument, got {type(value).__name__} {value!r}")
