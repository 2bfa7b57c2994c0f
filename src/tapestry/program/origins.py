"""Where the nodes of a decomposed graph come from: the exported call before decomposition, and the user's line.

Not here: anything about values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from tapestry.program.exporting import is_foreign
from tapestry.program.graph import Argument, Ref
from tapestry.program.program import Origin, Source

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<code>[^\n]*)')


def read_origins(
    before: ExportedProgram, after: ExportedProgram, value_names: Mapping[str, str]
) -> tuple[dict[str, Origin], dict[str, str]]:
    """The exported calls by name, and for each node of the decomposed graph the name of its origin.

    ``value_names`` gives the value names of the exported graph's placeholders. The view replays that
    functionalisation adds have no history of their own: they take the origin of what they read.
    """
    renames: dict[str, Ref] = {name: Ref(value) for name, value in value_names.items()}
    origins: dict[str, Origin] = {}
    for node in before.graph.nodes:
        if node.op != "call_function":
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            if getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[0], torch.fx.Node):
                base = renames.get(node.args[0].name, Ref(node.args[0].name))
                renames[node.name] = Ref(base.name, cast("int", node.args[1]))
            continue
        args = tuple(_argument(value, renames) for value in node.args)
        kwargs = tuple((key, _argument(value, renames)) for key, value in node.kwargs.items())
        origins[node.name] = Origin(node.name, str(node.target), args, kwargs)
    return origins, _origin_of(after, origins)


def _origin_of(after: ExportedProgram, origins: Mapping[str, Origin]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in after.graph.nodes:
        if node.op != "call_function":
            continue
        history = node.meta.get("from_node") or []
        named = [entry.name for entry in reversed(history) if entry.name in origins]
        inherited = [found[base.name] for base in node.all_input_nodes if base.name in found]
        if named:
            found[node.name] = named[0]
        elif inherited:
            found[node.name] = inherited[0]
    return found


def _argument(value: object, renames: Mapping[str, Ref]) -> Argument:
    if isinstance(value, torch.fx.Node):
        return renames.get(value.name, Ref(value.name))
    if isinstance(value, tuple | list):
        return tuple(_argument(entry, renames) for entry in cast("list[object]", value))
    return cast("Argument", value)


def read_source(node: torch.fx.Node) -> Source:
    """The innermost line of the user's code and the submodule that a node was made in.

    Where a model is made of PyTorch's modules only, that is a line of PyTorch's.
    """
    module, module_type = _module(cast("dict[str, Any]", node.meta.get("nn_module_stack") or {}))
    frames = [match.groupdict() for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if is_foreign(frame["file"])] or frames
    if not own:
        return Source("", 0, "", module, module_type)
    return Source(own[-1]["file"], int(own[-1]["line"]), own[-1]["code"], module, module_type)


def _module(stack: Mapping[str, Any]) -> tuple[str, str]:
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return str(path), name
