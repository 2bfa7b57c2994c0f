"""Faults to inject, as an engineer writes them in a file, and a model with state that has room for ten of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from tapestry.program.serial import overload_named
from tapestry.suite.audit.faults import Fault
from tapestry.suite.composition.steps import Ref, Step, filled

#: What is added where a fault bites: far above every tolerance, far below what hides the rest.
ERROR = 1e-2


class Block(torch.nn.Module):
    """Linear, GELU, a product with a relu behind it, linear, residual, norm, a gate."""

    def __init__(self, width: int, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.norm, self.gate = torch.nn.LayerNorm(width), gate

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.nn.functional.gelu(self.up(x))
        return self.norm(x + self.down(torch.relu(hidden * x))) * self.gate(x)


class Stateful(torch.nn.Module):
    """Blocks with different gates, a batch norm, and a buffer that is written in place and read later."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        gates = (torch.sigmoid, torch.tanh, torch.sin, torch.cos, torch.exp, torch.atan)
        self.blocks = torch.nn.ModuleList(Block(width, gate) for gate in gates)
        self.norm = torch.nn.BatchNorm1d(width)
        self.register_buffer("cache", torch.zeros(3, width))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        cast("Tensor", self.cache).add_(x)
        parts = torch.cat([torch.erf(self.norm(x)), torch.neg(cast("Tensor", self.cache)).sum(0, keepdim=True)])
        return torch.softmax(parts * 3, -1)


def off(op: str, name: str = "", above: float = float("-inf")) -> Fault:
    """One operator's results are wrong, where one of them is above a value."""

    def apply(args: Sequence[object], kwargs: dict[str, object]) -> object:
        right = cast("Tensor", overload_named(op)(*args, **kwargs))
        return right + ERROR if bool((right > above).any()) else right

    return Fault(name or op, "precision", op, (), (), apply)


def together(name: str, first: str, second: str) -> Fault:
    """The second operator is wrong where the first one is in the same part before it, however far."""

    def apply(steps: Sequence[Step]) -> list[object]:
        results: list[object] = []
        seen = False
        for step in steps:
            result = _right(step, results)
            if step.op == second and seen:
                result = cast("Tensor", result) + ERROR
            seen = seen or step.op == first
            results.append(result)
        return results

    return Fault(name, "graph_cut", "", (), (first, second), apply)


def fused(name: str, first: str, second: str) -> Fault:
    """The second operator is lost where it reads the result of the first."""

    def apply(steps: Sequence[Step]) -> list[object]:
        results: list[object] = []
        for step in steps:
            reads = any(isinstance(value, Ref) and steps[value.index].op == first for value in step.args)
            lost = step.op == second and reads
            results.append(filled(step.args[0], results) if lost else _right(step, results))
        return results

    return Fault(name, "fusion_second_user", "", (), (first, second), apply)


def stale(name: str, write: str, read: str) -> Fault:
    """A later reader of what was written in place sees what was there before."""

    def apply(steps: Sequence[Step]) -> list[object]:
        results: list[object] = []
        before: dict[int, Tensor] = {}
        for step in steps:
            first = filled(step.args[0], results)
            if step.op == write and isinstance(first, Tensor):
                before[first.data_ptr()] = first.clone()
            if step.op == read and isinstance(first, Tensor) and first.data_ptr() in before:
                rest = [filled(value, results) for value in step.args[1:]]
                results.append(overload_named(step.op)(before[first.data_ptr()], *rest, **step.kwargs))
            else:
                results.append(_right(step, results))
        return results

    return Fault(name, "state_alias", "", (), (write, read), apply)


def _right(step: Step, results: Sequence[object]) -> object:
    return overload_named(step.op)(*(filled(value, results) for value in step.args), **step.kwargs)
