"""Subjects of repro bundles made from calls and modules, and devices that are functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from tapestry.program.capture import capture
from tapestry.program.graph import Call, Graph, Ref, TensorSpec
from tapestry.program.interpret import fold, run_graph, start_values
from tapestry.program.region import region_of
from tapestry.suite.one_call import graph_of
from tapestry.suite.repro.attempt import Attempt, judged
from tapestry.suite.repro.subject import Subject
from tapestry.suite.variants.call import OpCall

#: What a device makes of the right outputs of a subject.
Fault = Callable[[Subject, list[Tensor]], list[Tensor]]


def subject_of(target: OpOverload, *args: object, **kwargs: object) -> Subject:
    """A call as a subject that hands out all results."""
    results = target(*args, **kwargs)
    several = isinstance(results, tuple | list)
    specs = tuple(TensorSpec.of(entry) for entry in (results if several else (results,)))
    outputs = tuple(Ref("n0", item) for item in range(len(specs)))
    like = Graph((), (Call("n0", target, (), (), specs, several),), outputs)
    return Subject(*graph_of(OpCall(target, args, kwargs), results, like))


def subject_of_module(module: torch.nn.Module, *args: Tensor) -> Subject:
    """Everything in a module as one subject."""
    program = capture(module, args)
    region = region_of(program, list(program.placeable))
    values = start_values(program, program.bind(args, {}), {})
    values.update(fold(program))
    inputs = tuple(values[ref] for ref in region.inputs)
    assert all(isinstance(entry, Tensor) for entry in inputs)
    return Subject(region.graph, inputs)  # type: ignore[arg-type]


class Faulty:
    """A device that runs subjects in eager and then spoils them; ``runs`` counts, ``seen`` keeps what was run."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen: list[Subject] = []

    @property
    def runs(self) -> int:
        """How many subjects were run."""
        return len(self.seen)

    def __call__(self, subject: Subject) -> Attempt:
        self.seen.append(subject)
        right = [tensor.clone() for tensor in run_graph(subject.graph, subject.inputs)]
        return judged(subject, self.fault(subject, right))


def shapes(subject: Subject) -> list[tuple[int, ...]]:
    """The shapes of a subject's inputs."""
    return [tuple(tensor.shape) for tensor in subject.inputs]


def values(tensors: Sequence[Tensor]) -> list[object]:
    """The values of tensors as nested lists."""
    return [tensor.tolist() for tensor in tensors]
