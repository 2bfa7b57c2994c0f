"""Models whose lines the capture tests look for. Every line that matters ends in a comment with its name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def line_of(name: str) -> int:
    """The line of this file that is marked ``# name``."""
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {name}"))


def decides(x: Tensor) -> Tensor:
    if x.sum() > 0:  # decides
        return x
    return -x


def takes_item(x: Tensor) -> Tensor:
    number = x.sum().item()  # takes_item
    return x * number


def sizes_by_data(x: Tensor) -> Tensor:
    return torch.zeros(int(x.sum()))  # sizes_by_data


def loops_by_data(x: Tensor) -> Tensor:
    for _ in range(int(x[0, 0])):  # loops_by_data
        x = x + 1
    return x


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero()  # nonzero


def masked(x: Tensor) -> Tensor:
    return x[x > 0]  # masked


def unique(x: Tensor) -> Tensor:
    return torch.unique(x)  # unique


def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))  # branches


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy())  # through_numpy


def raises(x: Tensor) -> Tensor:
    raise ValueError("not for this shape")  # raises


def misfits(x: Tensor) -> Tensor:
    return x @ x  # misfits


def sparse(x: Tensor) -> Tensor:
    return x.to_sparse().to_dense()  # sparse


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 0).all()):  # deep
            return x
        return x * 2


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def helper(x: Tensor) -> Tensor:
    return x.exp()  # helper


class Attribution(nn.Module):
    """Calls of every kind whose origin and line the tests know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.linear = nn.Linear(6, 4)
        self.register_buffer("cache", torch.zeros(4, 6))

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        left, right = x.chunk(2, 1)  # chunk
        self.cache[1:2] = x[0]  # copy
        normed = self.norm(image)  # batch_norm
        mapped = self.linear(x)  # linear
        grown = helper(mapped)
        gelu = F.gelu(  # gelu
            grown,
            approximate="tanh",
        )
        return left + right, normed, gelu, self.cache.sum()  # sum
