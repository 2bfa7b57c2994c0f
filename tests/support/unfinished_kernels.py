"""A suite of operators whose calls differ in kind, and the kernels that begin from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from tapestry.backends.kernels import declare
from tapestry.backends.kernels.loading import load_kernels
from tapestry.program.capture import capture
from tapestry.suite.carve import carve
from tapestry.suite.case import Suite
from tapestry.suite.skeleton.text import Skeleton, skeleton

#: Operators of the suite: one result and several, attributes with and without defaults, optional tensors, lists.
OPS = (
    "aten.gelu.default", "aten.linear.default", "aten.softmax.int", "aten.cat.default", "aten.embedding.default",
    "aten.max.dim", "aten.layer_norm.default", "aten.add.Tensor", "aten.index.Tensor", "aten.clamp.default",
)  # fmt: skip


class Kinds(torch.nn.Module):
    """Calls each operator of ``OPS``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(16, 8)
        self.up, self.down = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.gelu(self.up(x)) + torch.nn.functional.gelu(self.down(x), approximate="tanh")
        y = torch.add(self.norm(y), self.words(ids), alpha=2)
        joined = torch.cat([y, y.clamp(min=-0.5), torch.softmax(y, -1)], dim=1)
        values, indices = joined.max(dim=1)
        return values, indices, joined[:, places], ids + 1


@cache
def kinds_suite() -> Suite:
    """The suite, carved once."""
    generator = torch.Generator().manual_seed(1)
    x, ids = torch.randn(4, 8, generator=generator), torch.randint(0, 16, (4,), generator=generator)
    args = (x, ids, torch.tensor([3, 0, 5]))
    program = capture(Kinds().eval(), args, {}, name="kinds")
    return carve(program, [args])


def begun(op: str, device: str) -> Skeleton:
    """The beginning of a kernel for an operator of the suite."""
    cases = [case for case in kinds_suite().cases if case.op == op]
    return skeleton(op, cases, device, ["tapestry replay suite"])


@contextmanager
def declared(path: Path) -> Iterator[None]:
    """The kernels of a file, for as long as they are needed."""
    load_kernels(path)
    try:
        yield
    finally:
        declare.forget(str(path.resolve()))
