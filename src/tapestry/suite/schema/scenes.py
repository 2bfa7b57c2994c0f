"""Scenes: tensors that belong together, by argument name, such as an image with its kernel and bias.

Shapes are those of ordinary use, and small. The values are standard normal unless the name says what else they are
(an index, a mask, a variance). Not here: arguments that are no tensors (meanings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tapestry.suite.schema.kinds import Argument
from tapestry.suite.schema.meanings import meant

Shape = tuple[int, ...]


def normal(*shape: int) -> Tensor:
    """Standard normal float32."""
    return torch.randn(shape)


def positive(*shape: int) -> Tensor:
    """Float32 from 0.1 to 1."""
    return torch.rand(shape) * 0.9 + 0.1


def indices(bound: int, *shape: int) -> Tensor:
    """Int64 from 0 to below ``bound``."""
    return torch.randint(0, max(bound, 1), shape)


def definite(*shape: int) -> Tensor:
    """Symmetric positive definite matrices."""
    root = torch.randn(shape)
    return root @ root.mT + shape[-1] * torch.eye(shape[-1])


@dataclass(frozen=True)
class Scene:
    """``tensors`` gives values by argument name; other tensors are ``fill`` of ``shape``.

    ``dtype``, where set, is what all floating tensors are turned into.
    """

    name: str
    shape: Shape
    tensors: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    fill: Callable[..., Tensor] = normal
    dtype: torch.dtype | None = None

    def values(self, argument: Argument) -> list[object]:
        """Values for an argument of a schema; empty where none is known."""
        if argument.kind in ("Tensor", "List[Tensor]", "List[Optional[Tensor]]"):
            return [self._cast(value) for value in self._tensors(argument)]
        return meant(argument, self.shape)

    def _tensors(self, argument: Argument) -> list[object]:
        own = self.tensors.get(argument.name)
        if own is not None:
            value = own()
            listed = isinstance(value, list)
            return [value] if listed == argument.kind.startswith("List") else []
        if argument.kind == "List[Optional[Tensor]]":
            first, last = (self.shape[0], self.shape[-1]) if self.shape else (1, 1)
            return [[indices(first, 5)], [None, indices(last, 5)], [torch.rand(self.shape) > 0.5]]
        named = _NAMED.get(argument.name)
        made = named(self.shape) if named else self.fill(*self.shape)
        if argument.kind == "List[Tensor]":
            return [[made, self.fill(*self.shape)]]
        return [made]

    def _cast(self, value: object) -> object:
        if isinstance(value, list):
            return [self._cast(entry) for entry in value]
        if isinstance(value, Tensor) and self.dtype is not None and value.is_floating_point():
            return (value * 4).round().to(self.dtype) if not self.dtype.is_floating_point else value.to(self.dtype)
        return value


#: Tensors that are not like the first one, whatever the scene.
_NAMED: dict[str, Callable[[Shape], Tensor]] = {
    "index": lambda shape: indices(min(shape, default=1), *shape),
    "indices": lambda shape: indices(shape[0] if shape else 1, 5),
    "mask": lambda shape: torch.rand(shape) > 0.5,
    "condition": lambda shape: torch.rand(shape) > 0.5,
    "boundaries": lambda shape: normal(9).sort().values,
    "sorted_sequence": lambda shape: normal(9).sort().values,
    "repeats": lambda shape: indices(3, *shape[:1]),
    "p": lambda shape: positive(*shape),
    "var": lambda shape: positive(*shape),
    "std": lambda shape: positive(*shape),
    "scale": lambda shape: torch.tensor([0.05]),
    "zero_point": lambda shape: torch.tensor([3]),
    "quantiles": lambda shape: torch.tensor([0.25, 0.5]),
    "end": lambda shape: normal(*shape),
    "size": torch.tensor,
}


def _channels(count: int) -> dict[str, Callable[[], object]]:
    names = ("weight", "bias", "running_mean", "mean", "save_mean", "scale_weights")
    spreads = ("running_var", "var", "invstd", "save_invstd", "rstd", "save_var", "scales", "counts")
    made: dict[str, Callable[[], object]] = {name: lambda: normal(count) for name in names}
    made.update({name: lambda: positive(count) for name in spreads})
    made["scale"] = lambda: positive(count) / 10
    made["zero_point"] = lambda: indices(4, count).to(torch.int32)
    made["zero_points"] = lambda: indices(4, count)
    return made


def _image(rank: int, depthwise: bool = False) -> Scene:
    shape = (2, 4, 9, 8, 7)[: 2 + rank]
    weight = (4, 1) if depthwise else (6, 4)
    tensors: dict[str, Callable[[], object]] = {
        "weight": lambda: normal(*weight, *[3] * rank),
        "bias": lambda: normal(weight[0]),
        "grid": lambda: torch.rand(2, 5, 6, *[4] * (rank - 2), max(rank, 2)) * 2 - 1,
        "theta": lambda: normal(2, max(rank, 2), max(rank, 2) + 1),
    }
    return Scene(f"image{rank}d", shape, tensors)


def _recurrent(gates: int) -> Scene:
    """Sequence 5, batch 2, 4 inputs, 3 hidden units; packed: 6 rows in batches of 2, 2, 1 and 1."""
    layers: dict[str, Callable[[], object]] = {
        "params": lambda: [normal(3 * gates, 4), normal(3 * gates, 3), normal(3 * gates), normal(3 * gates)],
        "w_ih": lambda: normal(3 * gates, 4),
        "w_hh": lambda: normal(3 * gates, 3),
        "b_ih": lambda: normal(3 * gates),
        "b_hh": lambda: normal(3 * gates),
        "data": lambda: normal(6, 4),
        "batch_sizes": lambda: torch.tensor([2, 2, 1, 1]),
        "hx": (lambda: [normal(1, 2, 3), normal(1, 2, 3)]) if gates == 4 else (lambda: normal(1, 2, 3)),
        "cx": lambda: normal(1, 2, 3),
        "has_biases": lambda: True,
    }
    return Scene(f"recurrent with {gates} gates", (5, 2, 4), layers)


def _cell(gates: int) -> Scene:
    hidden = (lambda: [normal(2, 3), normal(2, 3)]) if gates == 4 else (lambda: normal(2, 3))
    scene = _recurrent(gates)
    return replace(scene, name=f"cell with {gates} gates", shape=(2, 4), tensors={**scene.tensors, "hx": hidden})


def _lower() -> Tensor:
    return normal(6, 6).tril() + 4 * torch.eye(6)


def scenes() -> tuple[Scene, ...]:
    """All scenes, the most usual ones first."""
    rows, batches = (8, 64), (2, 8, 16)
    return (
        Scene("rows", rows),
        Scene("product", rows, {
            "mat1": lambda: normal(8, 64), "mat2": lambda: normal(64, 16), "other": lambda: normal(64, 16),
            "tensor2": lambda: normal(64, 16), "vec": lambda: normal(64), "weight": lambda: normal(16, 64),
            "bias": lambda: normal(16), "tensors": lambda: [normal(8, 64), normal(64, 16)],
            "matrices": lambda: [normal(8, 64), normal(64, 16), normal(16, 4)], "mat": lambda: normal(8, 64),
            "input1": lambda: normal(8, 64), "input2": lambda: normal(8, 32),
        }),
        Scene("added product", (8, 16), {
            "mat1": lambda: normal(8, 64), "mat2": lambda: normal(64, 16), "batch1": lambda: normal(2, 8, 64),
            "batch2": lambda: normal(2, 64, 16), "vec1": lambda: normal(8), "vec2": lambda: normal(16),
        }),
        Scene("added vector", (8,), {"mat": lambda: normal(8, 64), "vec": lambda: normal(64)}),
        Scene("batched product", batches, {
            "mat2": lambda: normal(2, 16, 8), "batch1": lambda: normal(2, 8, 64), "batch2": lambda: normal(2, 64, 16),
            "other": lambda: normal(2, 16, 8), "tensor2": lambda: normal(2, 16, 8),
            "weight": lambda: normal(2, 16, 12), "bias": lambda: normal(12),
        }),
        Scene("layer", rows, {"weight": lambda: normal(64), "bias": lambda: normal(64)}),
        Scene("batch", (4, 6, 5, 5), _channels(6)),
        Scene("rows of channels", (8, 6), _channels(6)),
        *(_image(rank) for rank in (1, 2, 3)),
        replace(_image(2, depthwise=True), name="depthwise"),
        Scene("attention", (2, 4, 8, 16)),
        Scene("lookup", (3, 4), {
            "weight": lambda: normal(10, 8), "indices": lambda: indices(10, 3, 4), "self": lambda: indices(10, 3, 4),
            "input": lambda: indices(10, 3, 4),
        }),
        Scene("bags", (10, 8), {
            "weight": lambda: normal(10, 8), "indices": lambda: indices(10, 12),
            "per_sample_weights": lambda: normal(12),
            "offsets": lambda: torch.tensor([0, 4, 9]),
        }),
        Scene("classes", (8, 5), {
            "target": lambda: indices(5, 8), "weight": lambda: positive(5),
            "self": lambda: normal(8, 5).log_softmax(-1),
        }),
        Scene("classes of pixels", (2, 5, 4, 4), {
            "target": lambda: indices(5, 2, 4, 4), "weight": lambda: positive(5),
            "self": lambda: normal(2, 5, 4, 4).log_softmax(1),
        }),
        Scene("positive numbers", rows, fill=positive),
        Scene("batch of three", (2, 3, 8)),
        Scene("line", (16,)),
        Scene("number", ()),
        Scene("four dimensions", (2, 3, 4, 6)),
        Scene("whole numbers", rows, dtype=torch.int64),
        Scene("truth values", rows, fill=lambda *shape: torch.rand(shape) > 0.5),
        Scene("bytes", rows, dtype=torch.int8),
        Scene("complex numbers", rows, fill=lambda *shape: torch.randn(shape, dtype=torch.complex64)),
        Scene("definite matrices", (6, 6), {"tau": lambda: positive(4), "L": _lower, "input2": _lower}, fill=definite),
        Scene("batch of definite matrices", (2, 5, 5), fill=definite),
        Scene("pairs", (8, 2)),
        *(_recurrent(gates) for gates in (1, 3, 4)),
        *(_cell(gates) for gates in (1, 3, 4)),
    )  # fmt: skip
