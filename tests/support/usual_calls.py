"""Ordinary calls of many overloads: small shapes, values of N(0, 1). Used by the tests of the variants."""

from __future__ import annotations

import torch
from torch import Tensor

from tapestry.suite.variants.call import OpCall

aten = torch.ops.aten
_SOURCE = torch.Generator().manual_seed(7)


def normal(*shape: int) -> Tensor:
    """Values of N(0, 1)."""
    return torch.randn(shape, generator=_SOURCE)


def whole(low: int, high: int, *shape: int) -> Tensor:
    """Whole numbers of [low, high)."""
    return torch.randint(low, high, shape, generator=_SOURCE)


_CALLS = (
    (aten.add.Tensor, (normal(4, 6), normal(4, 6))),
    (aten.sub.Tensor, (normal(4, 6), normal(6))),
    (aten.mul.Tensor, (normal(4, 6), normal(4, 6))),
    (aten.div.Tensor_mode, (normal(4, 6), normal(4, 6)), {"rounding_mode": "floor"}),
    (aten.pow.Tensor_Scalar, (normal(4, 6).abs(), 2)),
    (aten.maximum.default, (normal(4, 6), normal(4, 6))),
    (aten.where.self, (normal(4, 6) > 0, normal(4, 6), normal(4, 6))),
    (aten.clamp.default, (normal(4, 6), -1, 1)),
    (aten.relu.default, (normal(4, 6),)),
    (aten.gelu.default, (normal(4, 6),)),
    (aten.leaky_relu.default, (normal(4, 6),)),
    (aten.elu.default, (normal(4, 6),)),
    (aten.softplus.default, (normal(4, 6),)),
    (aten.round.decimals, (normal(4, 6),), {"decimals": 1}),
    (aten.sum.dim_IntList, (normal(4, 6), [1])),
    (aten.mean.dim, (normal(4, 6), [1])),
    (aten.var.correction, (normal(4, 6), [1])),
    (aten.amax.default, (normal(4, 6), [1])),
    (aten.argmax.default, (normal(4, 6), 1)),
    (aten.max.dim, (normal(4, 6), 1)),
    (aten.prod.dim_int, (normal(4, 6), 1)),
    (aten.cumsum.default, (normal(4, 6), 1)),
    (aten.logsumexp.default, (normal(4, 6), [1])),
    (aten.linalg_vector_norm.default, (normal(4, 6), 2, [1])),
    (aten.softmax.int, (normal(4, 6), -1)),
    (aten.log_softmax.int, (normal(4, 6), -1)),
    (aten.sort.default, (normal(4, 6),)),
    (aten.topk.default, (normal(4, 6), 2)),
    (aten.linear.default, (normal(4, 6), normal(5, 6), normal(5))),
    (aten.matmul.default, (normal(4, 6), normal(6, 5))),
    (aten.bmm.default, (normal(2, 4, 6), normal(2, 6, 5))),
    (aten.addmm.default, (normal(5), normal(4, 6), normal(6, 5))),
    (aten.baddbmm.default, (normal(2, 4, 5), normal(2, 4, 6), normal(2, 6, 5))),
    (aten.conv1d.default, (normal(1, 4, 12), normal(6, 4, 3))),
    (aten.conv2d.default, (normal(1, 4, 8, 8), normal(6, 4, 3, 3), normal(6))),
    (aten.conv_transpose2d.input, (normal(1, 4, 6, 6), normal(4, 6, 3, 3))),
    (aten.avg_pool2d.default, (normal(1, 4, 8, 8), [2, 2])),
    (aten.max_pool2d.default, (normal(1, 4, 8, 8), [2, 2])),
    (aten.adaptive_avg_pool2d.default, (normal(1, 4, 8, 8), [2, 2])),
    (aten.upsample_bilinear2d.vec, (normal(1, 3, 6, 6), None, False, [2.0, 2.0])),
    (aten.upsample_nearest2d.vec, (normal(1, 3, 6, 6), None, [2.0, 2.0])),
    (aten.layer_norm.default, (normal(4, 3, 6), [6], normal(6), normal(6))),
    (aten.rms_norm.default, (normal(4, 6), [6], normal(6))),
    (aten.group_norm.default, (normal(2, 8, 3, 3), 4, normal(8), normal(8))),
    (aten.scaled_dot_product_attention.default, (normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))),
    (aten.embedding.default, (normal(9, 4), whole(0, 9, 5))),
    (aten.gather.default, (normal(4, 6), 1, whole(0, 6, 4, 3))),
    (aten.index_select.default, (normal(4, 6), 1, whole(0, 6, 3))),
    (aten.index.Tensor, (normal(8, 6), [torch.tensor([1, 2])])),
    (aten.index_put.default, (normal(8, 6), [torch.tensor([1, 2])], normal(2, 6))),
    (aten.cat.default, ([normal(2, 3), normal(4, 3)],)),
    (aten.stack.default, ([normal(2, 3), normal(2, 3)],)),
    (aten.split.Tensor, (normal(8, 6), 2)),
    (aten.flip.default, (normal(4, 6), [1])),
    (aten.roll.default, (normal(4, 6), [1], [1])),
    (aten.permute.default, (normal(2, 3, 4), [0, 2, 1])),
    (aten.transpose.int, (normal(2, 3, 4), 1, 2)),
    (aten.slice.Tensor, (normal(8, 12), 1, 0, 6)),
    (aten.select.int, (normal(8, 12), 0, 1)),
    (aten.view.default, (normal(8, 12), [8, 3, 4])),
    (aten.expand.default, (normal(1, 6), [4, 6])),
    (aten.repeat.default, (normal(2, 3), [1, 2])),
    (aten.constant_pad_nd.default, (normal(4, 6), [1, 1])),
    (aten.tril.default, (normal(4, 6),)),
    (aten.masked_fill.Scalar, (normal(4, 6), normal(4, 6) > 0, 0.0)),
    (aten.arange.start_step, (0, 10, 1)),
    (aten.full.default, ([2, 3], 1.0)),
)

CALLS: tuple[OpCall, ...] = tuple(OpCall(*call) for call in _CALLS)  # pyright: ignore
