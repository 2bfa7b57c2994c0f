"""A graph whose matrix products, convolutions and attention compute in a 16-bit float: casts around those calls.

Everything else, and all inputs and outputs of the graph, keep their types. Not here: whether that is accurate enough.
"""

from __future__ import annotations

import torch

from tapestry.program.graph import Argument, Call, Graph, Ref, TensorSpec, refs_in
from tapestry.program.region import renamed
from tapestry.program.serial import overload_named
from tapestry.program.traits import base_name

#: The operators in which nearly all of a network's arithmetic is.
HEAVY = frozenset({
    "linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "conv1d", "conv2d", "conv3d", "convolution",
    "conv_transpose1d", "conv_transpose2d", "scaled_dot_product_attention",
})  # fmt: skip

_CAST = overload_named("aten._to_copy.default")


def in_precision(graph: Graph, dtype: torch.dtype) -> Graph:
    """The graph with the heavy calls on float32 computed in ``dtype``."""
    return _Rewrite(graph, dtype).graph()


class _Rewrite:
    """Copies the calls in order; ``_now`` says under which name each value of the old graph is known in the new."""

    def __init__(self, graph: Graph, dtype: torch.dtype) -> None:
        self._old = graph
        self._dtype = dtype
        self._specs = {Ref(entry.name): entry.spec for entry in graph.inputs}
        self._now: dict[Ref, Ref] = {ref: ref for ref in self._specs}
        self._low: dict[Ref, Ref] = {}
        self._calls: list[Call] = []

    def graph(self) -> Graph:
        for call in self._old.calls:
            self._specs.update(
                (Ref(call.name, item), spec) for item, spec in enumerate(call.outputs) if spec is not None
            )
            if base_name(call.target) in HEAVY and self._floats(call.args):
                self._heavy(call)
            else:
                self._copy(call)
        return Graph(self._old.inputs, tuple(self._calls), tuple(self._now[ref] for ref in self._old.outputs))

    def _floats(self, args: Argument) -> bool:
        return any(self._specs[ref].dtype == torch.float32 for ref in refs_in(args))

    def _copy(self, call: Call) -> None:
        name = self._next()
        self._calls.append(renamed(call, name, self._now))
        self._now.update((Ref(call.name, item), Ref(name, item)) for item in range(len(call.outputs)))

    def _heavy(self, call: Call) -> None:
        wanted = dict.fromkeys(refs_in((call.args, tuple(value for _, value in call.kwargs))))
        names = {ref: self._lowered(ref) for ref in wanted}
        name = self._next()
        lowered = renamed(call, name, names)
        outputs = tuple(None if spec is None else self._low_spec(spec) for spec in call.outputs)
        self._calls.append(Call(name, lowered.target, lowered.args, lowered.kwargs, outputs, call.is_tuple))
        for item, spec in enumerate(call.outputs):
            if spec is not None:
                self._now[Ref(call.name, item)] = self._cast(Ref(name, item), spec)

    def _lowered(self, ref: Ref) -> Ref:
        """The value in the lower precision; itself when it is no float32."""
        spec = self._specs[ref]
        if spec.dtype != torch.float32:
            return self._now[ref]
        if ref not in self._low:
            self._low[ref] = self._cast(self._now[ref], self._low_spec(spec))
        return self._low[ref]

    def _cast(self, ref: Ref, spec: TensorSpec) -> Ref:
        name = self._next()
        self._calls.append(Call(name, _CAST, (ref,), (("dtype", spec.dtype),), (spec,)))
        return Ref(name)

    def _low_spec(self, spec: TensorSpec) -> TensorSpec:
        return TensorSpec(spec.shape, spec.stride, self._dtype) if spec.dtype == torch.float32 else spec

    def _next(self) -> str:
        return f"n{len(self._calls)}"
