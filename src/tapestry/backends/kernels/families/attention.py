"""scaled_dot_product_attention of floats as one kernel, also where heads are split off and joined by transposing.

Not here: the kernels themselves (attention_alone, attention_group).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch

from tapestry.backends.kernels.declare import Dispatch
from tapestry.backends.kernels.families import attention_alone, attention_group
from tapestry.backends.kernels.families.conditions import FLOATS, bindable, some_elements, within_rounds
from tapestry.backends.kernels.families.heads import Attention, Heads, Mask
from tapestry.backends.kernels.families.shipped import ship
from tapestry.backends.kernels.schedule import KINDS, Schedule
from tapestry.backends.rules import Expression, MatchView, Op, all_of, any_, attr, either, op, optional
from tapestry.program.serial import dtype_name

_MODULES = {"invocation": attention_alone, "workgroup": attention_group}
#: [batch, rows, heads, values] as [batch, heads, rows, values].
_SPLIT = (0, 2, 1, 3)


def _described(m: MatchView) -> Attention:
    """The attention of a match. Operands whose heads a matched call splits off are bound as they were before it."""
    operands = {name: m.spec(name) for name in ("q", "k", "v")}
    split = {name for name in (*operands, "out") if f"{name}_split" in m}
    shapes = {name: _as_heads(spec.shape, name in split) for name, spec in operands.items()}
    heads = {name: Heads.of(spec.shape, _SPLIT if name in split else None) for name, spec in operands.items()}
    result = m.spec("attention").shape
    joined = _as_heads(result, "out" in split)
    scale, masked = m.value("scale"), "mask" in m
    return Attention(
        batch=result[:-2], rows=result[-2], keys=shapes["k"][-2], depth=shapes["q"][-1], width=result[-1],
        q=heads["q"], k=heads["k"], v=heads["v"], out=Heads.of(joined, _SPLIT if "out" in split else None),
        scale=float(scale) if isinstance(scale, int | float) else 1 / sqrt(shapes["q"][-1]),
        mask=Mask(m.spec("mask").shape, m.spec("mask").dtype == torch.bool) if masked else None,
        causal=m.value("causal") is True,
        shared=shapes["q"][-3] // shapes["k"][-3] if m.value("gqa") is True else 1,
        dtype=dtype_name(operands["q"].dtype),
    )  # fmt: skip


def _as_heads(shape: tuple[int, ...], split: bool) -> tuple[int, ...]:
    """[batch, rows, heads, values] as [batch, heads, rows, values], or the other way round; or the shape as it is."""
    return (shape[0], shape[2], shape[1], shape[3]) if split and len(shape) == 4 else shape


def _suits(m: MatchView) -> str | None:
    """Operands of one type of floats; a mask of booleans or of that type; heads of k and v in the same numbers."""
    types = list(dict.fromkeys(dtype_name(m.spec(name).dtype) for name in ("q", "k", "v")))
    if len(types) > 1 or types[0] not in FLOATS:
        return f"operands of {' and '.join(types)}, expected one of {', '.join(FLOATS)}"
    ranks = [len(m.spec(name).shape) for name in ("q", "k", "v")]
    if min(ranks) < 2:
        return f"operands of {ranks} dimensions, expected two or more"
    if "viewed" in m and m.value("viewed") != m.spec("attention").shape:
        return "a view that changes the shape of the result"
    if "out_split" in m and len(m.spec("attention").shape) != 4:
        return f"a result of {len(m.spec('attention').shape)} dimensions, expected 4 where its heads are joined"
    if "mask" in m and dtype_name(m.spec("mask").dtype) not in ("bool", types[0]):
        return f"a mask of {dtype_name(m.spec('mask').dtype)}, expected bool or {types[0]}"
    split = {name for name in ("q", "k", "v") if f"{name}_split" in m}
    if any(len(m.spec(name).shape) != 4 for name in split):
        return "operands whose heads are split off, but not of 4 dimensions"
    k, v = (_as_heads(m.spec(name).shape, name in split) for name in ("k", "v"))
    if m.value("gqa") is True and (min(ranks) < 3 or k[-3] != v[-3]):
        return "grouped heads of k and v in different numbers"
    return None


def _heads(name: str) -> Expression:
    """An operand, or one whose heads are split off: [batch, rows, heads, values] transposed."""
    return either(op("aten.transpose.int", any_(name), 1, 2).named(f"{name}_split"), any_(name))


def _attention(q: Expression, k: Expression, v: Expression) -> Op:
    mask = either(any_("mask"), None)
    called = op(
        "aten.scaled_dot_product_attention.default", q, k, v, mask, 0.0, attr("causal"),
        scale=attr("scale"), enable_gqa=attr("gqa"),
    )  # fmt: skip
    return called.named("attention")


def _declare(name: str, pattern: Expression) -> None:
    for kind in KINDS:
        module = _MODULES[kind]

        def within(m: MatchView, rounds: Callable[[Attention], int] = module.rounds) -> str | None:
            return within_rounds(m, rounds(_described(m)))

        def write(m: MatchView, dispatch: Callable[[Attention], Dispatch] = module.dispatch) -> Dispatch:
            return dispatch(_described(m))

        conditions = all_of(some_elements, bindable, _suits, within)
        ship(pattern, conditions, name, Schedule(kind, "attention"), write)


_ALONE = _attention(any_("q"), any_("k"), any_("v"))
_SPLITTING = _attention(_heads("q"), _heads("k"), _heads("v"))
_declare("attention", _ALONE)
_declare("attention of split heads", _SPLITTING)
_declare(
    "attention of split heads, joined",
    op("aten.transpose.int", optional(op("aten.view.default", _SPLITTING, attr("viewed"))), 1, 2).named("out_split"),
)
