"""From the operators that users write to those that the TVM importer computes right.

torch's core ATen table, with our own formulas where the core table keeps an operator that TVM gets wrong or lacks
(a one-pass variance in layer_norm, dropped index signs, ``alpha``, masked softmax rows). Not here: anything of TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tapestry.backends.tvm import decompose_index, decompose_pool
from tapestry.errors import CompileError, TapestryError, UnsupportedError
from tapestry.program.fx import to_fx
from tapestry.program.graph import Graph, TensorSpec

aten = torch.ops.aten
_SAFE_SOFTMAX = cast("torch._ops.OpOverload", getattr(aten, "_safe_softmax").default)  # noqa: B009

Table = dict[torch._ops.OpOverload, Callable[..., object]]


def decompose(graph: Graph) -> fx.GraphModule:
    """The graph over the operators that the importer takes; nodes carry ``meta["val"]``, a fake tensor.

    Placeholders keep the names of the graph's inputs. Raises UnsupportedError for an operator that has no static
    form, CompileError when tracing fails.
    """
    module = to_fx(graph)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [
            torch.empty_strided(entry.spec.shape, entry.spec.stride, dtype=entry.spec.dtype) for entry in graph.inputs
        ]
    interpreter = _Interpreter(module, graph)

    def run(*args: Tensor) -> object:
        return interpreter.run(*args)

    try:
        traced = _traced(run, inputs)
        if any(_mutates(node) for node in traced.graph.nodes):
            # torch's formulas write in place into what they made; they ran below functionalisation.
            traced = _traced(traced, inputs)
    except TapestryError:
        raise
    except Exception as error:
        raise CompileError(f"decomposition failed: {type(error).__name__}: {error}") from error
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, entry in zip(placeholders, graph.inputs, strict=True):
        node.name = entry.name
        node.target = entry.name
    traced.graph.eliminate_dead_code()
    return traced


def has_formula(target: torch._ops.OpOverload) -> bool:
    """Whether an operator is taken apart: by our formulas, torch's table, or torch's own composite definition."""
    if target in _table() or str(target).removeprefix("aten.") in _OWN:
        return True
    return torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")  # noqa: SLF001


def _traced(function: Callable[..., object], inputs: Sequence[Tensor]) -> fx.GraphModule:
    with torch.no_grad():
        return make_fx(torch.func.functionalize(function), decomposition_table=_table(), tracing_mode="fake")(*inputs)


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


_HALVES = {torch.float16, torch.bfloat16}


class _Interpreter(fx.Interpreter):
    """Runs our own formulas itself: torch would take composite operators apart before it asks the table.

    Calls on 16-bit floats run on float32, and their results are rounded to the type that eager gives: what eager
    does, operator by operator, and what devices without such types can do.
    """

    def __init__(self, module: fx.GraphModule, graph: Graph) -> None:
        super().__init__(module)
        self._specs = {call.name: call.outputs for call in graph.calls}
        self._rounded: tuple[TensorSpec | None, ...] = ()

    def run_node(self, n: fx.Node) -> object:
        self._rounded = self._specs.get(n.name, ())
        return super().run_node(n)

    def call_function(self, target: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if not self._rounded:
            return super().call_function(target, args, kwargs)  # pyright: ignore[reportArgumentType]
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        own = _OWN.get(str(target).removeprefix("aten."))
        result: object = NotImplemented if own is None else own(*args, **kwargs)
        if result is NotImplemented:
            result = super().call_function(target, args, kwargs)  # pyright: ignore[reportArgumentType]
        return self._narrowed(result)

    def _narrowed(self, result: object) -> object:
        entries = list(result) if isinstance(result, tuple | list) else [result]
        for place, (entry, spec) in enumerate(zip(entries, self._rounded, strict=False)):
            if isinstance(entry, Tensor) and spec is not None and spec.dtype in _HALVES:
                entries[place] = entry.to(spec.dtype)
        return entries if isinstance(result, tuple | list) else entries[0]


def _widened(value: object) -> object:
    """float32 for 16-bit floats: tensors and dtype arguments."""
    if isinstance(value, Tensor) and value.dtype in _HALVES:
        return value.to(torch.float32)
    return torch.float32 if isinstance(value, torch.dtype) and value in _HALVES else value


@cache
def _table() -> Table:
    table = cast("Table", dict(core_aten_decompositions()))
    table.update(cast("Table", get_decompositions(_MORE)))
    del table[_SAFE_SOFTMAX]  # whole for our converter, although the core table takes it apart
    for name, formula in _OWN.items():
        if name == "view.default":
            continue  # only where the user's graph has one: a formula's own views fit its own strides
        packet = getattr(aten, name.split(".")[0])
        table[getattr(packet, name.split(".")[1])] = formula
    return table


def _accumulation(x: Tensor) -> torch.dtype:
    """float32 for the 16-bit types, else the type itself: what eager accumulates in."""
    return torch.float32 if x.dtype in {torch.float16, torch.bfloat16} else x.dtype


def _centred(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, deviation and sum of squared deviations over ``dims``, in two passes, kept dims.

    TVM's one-pass E[x²] − E[x]² loses everything when the mean is large beside the spread.
    """
    mean = x.mean(dims, keepdim=True)
    deviation = x - mean
    return mean, deviation, (deviation * deviation).sum(dims, keepdim=True)


def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = _accumulation(x)
    mean, deviation, squares = _centred(x.to(wide), dims)
    scale = torch.rsqrt(squares * (1.0 / max(1, math.prod(shape))) + eps)
    result = deviation * scale
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return result.to(x.dtype), mean, scale


def _layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _native_layer_norm(x, shape, weight, bias, eps)[0]


def _per_channel(value: Tensor, rank: int) -> Tensor:
    return value.reshape([1, -1] + [1] * (rank - 2))


def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _accumulation(x)
    scale = torch.rsqrt(running_var.to(wide) + eps)
    if weight is not None:
        scale = scale * weight
    result = (x.to(wide) - _per_channel(running_mean, x.dim())) * _per_channel(scale, x.dim())
    if bias is not None:
        result = result + _per_channel(bias, x.dim())
    nothing = torch.zeros([0], dtype=x.dtype)
    return result.to(x.dtype), nothing, nothing


def _native_batch_norm_any(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not training and running_mean is not None and running_var is not None:
        return _native_batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None:
        raise UnsupportedError("batch norm in training writes its running statistics")
    rest = [dim for dim in range(x.dim()) if dim != 1]
    mean, deviation, squares = _centred(x.to(_accumulation(x)), rest)
    scale = torch.rsqrt(squares * (x.shape[1] / max(1, x.numel())) + eps)
    result = deviation * scale
    if weight is not None:
        result = result * _per_channel(weight, x.dim())
    if bias is not None:
        result = result + _per_channel(bias, x.dim())
    return result.to(x.dtype), mean.reshape([-1]), scale.reshape([-1])


def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _accumulation(x)
    mean, deviation, squares = _centred(x.to(wide).reshape([n, group, -1]), [2])
    scale = torch.rsqrt(squares * (group / max(1, c * hw)) + eps)
    result = (deviation * scale).reshape(x.shape)
    if weight is not None:
        result = result * _per_channel(weight, x.dim())
    if bias is not None:
        result = result + _per_channel(bias, x.dim())
    return result.to(x.dtype), mean.reshape([n, group]), scale.reshape([n, group])


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = [d % max(1, x.dim()) for d in dim] if dim else list(range(x.dim()))
    if not x.dim():
        mean, squares = x * 1, (x - x) * (x - x)
    else:
        mean, _, squares = _centred(x.to(_accumulation(x)), dims)
    count = math.prod(x.shape[d] for d in dims) if x.dim() else 1
    free = max(0.0, count - (1.0 if correction is None else float(correction)))
    var = squares / free if free else squares * math.inf  # TVM refuses a division by the constant 0
    if not keepdim and x.dim():
        mean, var = mean.squeeze(dims), var.squeeze(dims)
    return var.to(x.dtype), mean.to(x.dtype)


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p != 0.0:
        raise UnsupportedError(f"attention with dropout_p={dropout_p} draws random numbers")
    wide = _accumulation(query)
    q, k, v = query.to(wide), key.to(wide), value.to(wide)
    if enable_gqa:
        k, v = (_repeat_heads(t, q.shape[-3] // t.shape[-3]) for t in (k, v))
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = torch.matmul(q, k.transpose(-2, -1)) * factor
    if is_causal:
        attn_mask = torch.ones([q.shape[-2], k.shape[-2]], dtype=torch.bool).tril()
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), v).to(query.dtype)
    is_choice = attn_mask.dtype == torch.bool
    scores = torch.where(attn_mask, scores, -math.inf) if is_choice else scores + attn_mask
    return torch.matmul(_SAFE_SOFTMAX(scores, -1), v).to(query.dtype)


def _repeat_heads(x: Tensor, times: int) -> Tensor:
    """Each head (dimension −3) ``times`` times in a row."""
    *batch, heads, length, width = x.shape
    wide = x.unsqueeze(-3).expand([*batch, heads, times, length, width])
    return wide.reshape([*batch, heads * times, length, width])


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = x.to(_accumulation(x))
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
        return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def _full_like(x: Tensor, value: float, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    """Without the tensor whose shape it takes, so that it is seen to be constant."""
    return torch.full(x.shape, value, dtype=dtype or x.dtype)


def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val)


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    wide = x.to(_accumulation(x))
    negative = torch.expm1(wide * input_scale) * (alpha * scale)
    return torch.where(wide > 0, wide * scale, negative).to(x.dtype)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.mm(a, b)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Operands without elements add nothing (and a one-dimensional empty one is allowed beside any shape)."""
    full = [tensor for tensor in tensors if tensor.numel()]
    if len(full) == len(tensors):
        return NotImplemented
    if not full:
        return NotImplemented
    dtype = torch.result_type(tensors[0], tensors[0])
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    full = [tensor.to(dtype) for tensor in full]
    return full[0].clone() if len(full) == 1 else aten.cat.default(full, dim)


def _view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Eager allowed the view of the strides it had; ours may have others, and on the device all are contiguous."""
    return x.reshape(shape)


#: Taken apart with torch's formulas, although they are core: the importer lacks them or mistakes a shape.
_MORE = (
    aten.upsample_bilinear2d.default,
    aten.upsample_bicubic2d.default,
    aten.upsample_trilinear3d.default,
    aten.grid_sampler_2d.default,
    aten.dist.default,
)


_OWN: dict[str, Callable[..., object]] = {
    "layer_norm.default": _layer_norm,
    "native_layer_norm.default": _native_layer_norm,
    "_native_batch_norm_legit_no_training.default": _native_batch_norm,
    "native_batch_norm.default": _native_batch_norm_any,
    "native_group_norm.default": _native_group_norm,
    "var.correction": _var,
    "var_mean.correction": _var_mean,
    "scaled_dot_product_attention.default": _attention,
    "gelu.default": _gelu,
    "full_like.default": _full_like,
    "hardtanh.default": _hardtanh,
    "elu.default": _elu,
    "addmm.default": _addmm,
    "cat.default": _cat,
    "view.default": _view,
    **decompose_index.FORMULAS,
    **decompose_pool.FORMULAS,
}
