"""Programs made by hand: small graphs wired as a test says, without the seconds that capturing takes."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from tapestry.program.graph import Call, Ref, TensorSpec
from tapestry.program.program import Node, Program, ProgramInput, ProgramOutput, Source

#: Node number k adds two earlier values (0 is the input), both by their number.
Wires = tuple[tuple[int, int], ...]


def wired(wires: Wires, random: frozenset[int] = frozenset(), modules: tuple[str, ...] = ()) -> Program:
    """A program over vectors of two; nodes in ``random`` draw numbers instead. All values are results.

    ``modules`` gives the module path of each node.
    """
    x = torch.ones(2)
    spec = TensorSpec.of(x)
    names = ["input:x", *(f"n{place}" for place in range(len(wires)))]
    nodes: list[Node] = []
    for place, (left, right) in enumerate(wires):
        if place in random:
            call = Call(names[place + 1], torch.ops.aten.rand_like.default, (Ref(names[left]),), (), (spec,))
        else:
            operands = (Ref(names[left]), Ref(names[right]))
            call = Call(names[place + 1], torch.ops.aten.add.Tensor, operands, (), (spec,))
        module = modules[place] if modules else ""
        nodes.append(Node(call, call.name, Source("wired.py", place + 1, "", module, "Module")))
    outputs = tuple(ProgramOutput(Ref(name), spec) for name in names[1:])
    in_spec = pytree.tree_flatten(((x,), {}))[1]
    out_spec = pytree.tree_flatten([x] * len(outputs))[1]
    inputs = (ProgramInput("input:x", "x", spec),)
    return Program("wired", inputs, {}, tuple(nodes), outputs, (), {}, in_spec, out_spec)
