"""Operations and bytes of single nodes, counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tapestry.program.capture import capture
from tapestry.program.graph import Ref
from tapestry.program.work import Work, work_of

ones = torch.ones

CASES: list[tuple[Callable[..., torch.Tensor], tuple[torch.Tensor | int | None, ...], str, Work]] = [
    (F.linear, (ones(2, 3), ones(5, 3), ones(5)), "linear", Work(2 * 2 * 5 * 3, 4 * (6 + 15 + 5 + 10))),
    (torch.bmm, (ones(7, 2, 3), ones(7, 3, 5)), "bmm", Work(2 * 7 * 2 * 5 * 3, 4 * 7 * (6 + 15 + 10))),
    (torch.addmm, (ones(5), ones(2, 3), ones(3, 5)), "addmm", Work(60, 4 * (5 + 6 + 15 + 10))),
    (torch.dot, (ones(9), ones(9)), "dot", Work(18, 4 * 19)),
    (
        F.conv2d,
        (ones(1, 4, 6, 6), ones(8, 2, 3, 3), None, 1, 0, 1, 2),
        "conv2d",
        Work(2 * (8 * 16) * (2 * 9), 4 * (144 + 144 + 128)),
    ),
    (
        F.conv_transpose2d,
        (ones(1, 4, 6, 6), ones(4, 2, 3, 3)),
        "conv_transpose2d",
        Work(2 * 144 * 18, 4 * (144 + 72 + 128)),
    ),
    (
        F.scaled_dot_product_attention,
        (ones(1, 2, 3, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 6)),
        "scaled_dot_product_attention",
        Work(2 * 2 * 3 * 5 * (4 + 6), 4 * (24 + 40 + 60 + 36)),
    ),
    (lambda a, b: torch.einsum("ji,jk->ik", a, b), (ones(3, 2), ones(3, 5)), "einsum", Work(60, 4 * 31)),
    (lambda a, b: torch.einsum("...ij,jk", a, b), (ones(7, 2, 3), ones(3, 5)), "einsum", Work(420, 4 * 127)),
    (torch.exp, (ones(3, 4),), "exp", Work(12, 96)),
    (lambda x: x * x, (ones(3, 4),), "mul", Work(12, 96)),
    (torch.add, (ones(3, 4), ones(4)), "add", Work(12, 4 * 28)),
    (lambda x: x.sum(0), (ones(3, 4),), "sum", Work(12, 64)),
    (F.embedding, (torch.tensor([3, 3]), ones(9, 4)), "embedding", Work(0, 2 * 8 + 4 * (8 + 8))),
    (lambda x, i: x.index_select(0, i), (ones(9, 4), torch.tensor([2])), "index_select", Work(0, 8 + 4 * (4 + 4))),
    (lambda x, i: x.gather(0, i), (ones(9), torch.zeros(20).long()), "gather", Work(0, 20 * 8 + 4 * (9 + 20))),
    (lambda x: x.t(), (ones(3, 4),), "t", Work(0, 0)),
    (lambda x: x + 1, (torch.arange(4),), "add", Work(0, 64)),
    (lambda x: x.half() + 1, (ones(4),), "add", Work(4, 16)),
]


def test_work() -> None:
    def all_of_them(*given: tuple[torch.Tensor | int | None, ...]) -> list[torch.Tensor]:
        return [function(*args) for (function, *_), args in zip(CASES, given, strict=True)]

    program = capture(all_of_them, tuple(args for _, args, _, _ in CASES))
    nodes = [program.by_id[ref.name] for ref in (output.value for output in program.outputs) if isinstance(ref, Ref)]
    for node, (_, args, op, expected) in zip(nodes, CASES, strict=True):
        assert node.op.split(".")[1] == op
        assert work_of(program, node.id) == expected, (op, args)
