"""Matrix products of floats: mm, addmm, bmm, matmul and linear, also with the activation or sum that follows a linear.

A linear's weight is read as torch keeps it, one row for each result. Not here: the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isfinite, prod

import torch

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families import product_alone, product_group
from tapestry.backends.kernels.families.conditions import plain_floats, within_rounds
from tapestry.backends.kernels.families.product import Finish, Product
from tapestry.backends.kernels.families.shipped import ship
from tapestry.backends.kernels.families.text import batch_place, number
from tapestry.backends.kernels.schedule import Family, Kind, Schedule
from tapestry.backends.kernels.webgpu.elementwise import ERF
from tapestry.backends.rules import (
    Expression,
    MatchView,
    Predicate,
    all_of,
    any_,
    attr,
    dtypes,
    either,
    op,
    same_shape,
)
from tapestry.program.serial import dtype_name

_GELU = "fn gelu(y : f32) -> f32 { return 0.5 * y * erfc(-0.70710678 * y); }\n"
_GELU_BY_TANH = """
fn gelu(y : f32) -> f32 {
  let inner = 0.79788456 * fma(0.044715 * y * y, y, y);
  if (is_nan(y)) { return y; }
  return 0.5 * y * (1.0 + tanh(clamp(inner, -20.0, 20.0)));
}
"""
_RELU = "fn relu(y : f32) -> f32 { return select(y, 0.0, y < 0.0); }\n"
_MAKERS: dict[Kind, tuple[Callable[[Product], int], Callable[[Product], Dispatch]]] = {
    "invocation": (product_alone.rounds, product_alone.dispatch),
    "large": (product_alone.rounds, partial(product_alone.dispatch, large=True)),
    "workgroup": (product_group.rounds, product_group.dispatch),
}
_Describe = Callable[[MatchView], Product]


def _linear(m: MatchView) -> Product:
    """X @ w.T, with the bias if there is one."""
    shape, weight = m.spec("x").shape, m.spec("w").shape
    columns, depth = (weight if len(weight) == 2 else (1, *weight))[-2:]
    return Product(
        rows=prod(shape[:-1]), columns=columns, depth=depth, batch=(), x_batch=(), w_batch=(), transposed=True,
        dtype=dtype_name(m.spec("x").dtype), finish=_with_bias(m), lanes=_lanes(m),
    )  # fmt: skip


def _lanes(m: MatchView) -> int:
    """WGSL has vectors of up to four values, and ``dot``; in OpenCL C a sum for each of eight lanes is faster."""
    return 8 if m.info.kind == "opencl" else 4


def _with_bias(m: MatchView) -> Finish:
    return Finish("sum + b[column]", ("b",)) if m.bindings.get("b") is not None else Finish()


def _linear_then(expression: str, reads: tuple[str, ...] = (), functions: str = "") -> _Describe:
    """A linear, then an expression of its result ``Y``."""

    def describe(m: MatchView) -> Product:
        linear = _linear(m)
        first = linear.finish
        finish = Finish(expression.replace("Y", f"({first.expression})"), (*first.reads, *reads), functions)
        return replace(linear, finish=finish)

    return describe


def _matmul(m: MatchView) -> Product:
    """mm, bmm and matmul: vectors are matrices of one row or column, batches broadcast."""
    x, w = m.spec("x").shape, m.spec("w").shape
    vector = len(w) == 1
    rows, depth = (x if len(x) > 1 else (1, *x))[-2:]
    columns = 1 if vector else w[-1]
    x_batch, w_batch = x[:-2], w[:-2]
    batch = tuple(torch.broadcast_shapes(x_batch, w_batch))
    if prod(w_batch) == 1:  # one matrix for all: the rows of all batches are one product's
        rows, x_batch, w_batch, batch = rows * prod(x_batch), (), (), ()
    return Product(
        rows=rows, columns=columns, depth=depth, batch=batch, x_batch=x_batch, w_batch=w_batch, transposed=vector,
        dtype=dtype_name(m.spec("x").dtype), lanes=_lanes(m),
    )  # fmt: skip


def _addmm(m: MatchView) -> Product:
    """Beta b + alpha x @ w; with beta = 0 nothing of b counts, not even NaN."""
    product = _matmul(m)
    sizes = (product.rows, product.columns)
    alpha, beta = (_factor(m, name) for name in ("alpha", "beta"))
    scaled = "sum" if alpha == 1 else f"{number(alpha)} * sum"
    if beta == 0:
        return replace(product, finish=Finish(scaled))
    added = f"b[{batch_place(f'(row * {sizes[1]}u + column)', sizes, m.spec('b').shape)}]"
    added = added if beta == 1 else f"{number(beta)} * {added}"
    return replace(product, finish=Finish(f"{scaled} + {added}", ("b",)))


def _factor(m: MatchView, name: str) -> float:
    value = m.value(name)
    return float(value) if isinstance(value, int | float) else 1.0


def _finite_factors(m: MatchView) -> str | None:
    wrong = [name for name in ("alpha", "beta") if not isfinite(torch.tensor(_factor(m, name)).item())]
    return f"{wrong[0]} is {m.value(wrong[0])}, expected a finite float32" if wrong else None


def _family(describe: _Describe) -> Callable[[MatchView], Family]:
    def family(m: MatchView) -> Family:
        return "matvec" if describe(m).rows <= product_group.FEW_ROWS else "matmul"

    return family


def _declare(name: str, pattern: Expression, describe: _Describe, when: Predicate | None = None) -> None:
    for kind, (rounds, dispatch) in _MAKERS.items():

        def within(m: MatchView, rounds: Callable[[Product], int] = rounds) -> str | None:
            return within_rounds(m, rounds(describe(m)))

        def write(m: MatchView, dispatch: Callable[[Product], Dispatch] = dispatch) -> Dispatch:
            return dispatch(describe(m))

        conditions = all_of(plain_floats, *([when] if when is not None else []), within)
        ship(pattern, conditions, name, Schedule(kind, _family(describe)), write)


_declare("mm", op("aten.mm.default", any_("x"), any_("w")), _matmul)
_declare("bmm", op("aten.bmm.default", any_("x"), any_("w")), _matmul)
_declare("matmul", op("aten.matmul.default", any_("x"), any_("w")), _matmul)
_declare(
    "addmm",
    op("aten.addmm.default", any_("b"), any_("x"), any_("w"), beta=attr("beta"), alpha=attr("alpha")),
    _addmm,
    _finite_factors,
)
_LINEAR = op("aten.linear.default", any_("x"), any_("w"), either(any_("b"), None)).named("linear")
_declare("linear", _LINEAR, _linear)
for _name, _pattern, _expression, _functions in (
    ("linear and gelu", op("aten.gelu.default", _LINEAR, approximate="none"), "gelu(Y)", ERF + _GELU),
    ("linear and gelu by tanh", op("aten.gelu.default", _LINEAR, approximate="tanh"), "gelu(Y)", _GELU_BY_TANH),
    ("linear and relu", op("aten.relu.default", _LINEAR), "relu(Y)", _RELU),
):
    _declare(_name, _pattern, _linear_then(_expression, (), _functions), dtypes("float32"))
_declare(
    "linear and sum",
    op("aten.add.Tensor", _LINEAR, any_("r")),
    _linear_then("Y + r[at]", ("r",)),
    all_of(dtypes("float32"), same_shape("linear", "r")),
)
