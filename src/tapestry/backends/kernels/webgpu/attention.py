"""scaled_dot_product_attention of floats as one kernel, also where heads are split off and joined by transposing.

Not here: the kernels themselves (attention_alone, attention_group).
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch

from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.kernels.schedule import KINDS, Schedule
from tapestry.backends.kernels.webgpu import attention_alone, attention_group
from tapestry.backends.kernels.webgpu.conditions import FLOATS, bindable, some_elements, within_rounds
from tapestry.backends.kernels.webgpu.heads import Attention, Heads, Mask
from tapestry.backends.rules import Expression, MatchView, Op, all_of, any_, attr, either, op
from tapestry.program.graph import TensorSpec
from tapestry.program.serial import dtype_name

_MODULES = {"invocation": attention_alone, "workgroup": attention_group}
#: [batch, rows, heads, values] as [batch, heads, rows, values].
_SPLIT = (0, 2, 1, 3)


def _described(m: MatchView, split: tuple[str, ...] = ()) -> Attention:
    """The attention of a match. ``split`` names the operands, of q, k, v and out, that are bound before transposing."""
    call = m.call("attention")
    operands = {name: m.spec(name) for name in ("q", "k", "v")}
    heads = {
        name: Heads.of(spec.shape, _SPLIT if name in split else None) for name, spec in operands.items()
    }  # fmt: skip
    result = m.spec("attention").shape
    shapes = {name: _viewed(spec, name in split) for name, spec in operands.items()}
    batch = result[:-2]
    whole = (result[0], result[2], result[1], result[3]) if "out" in split else result
    scale, depth = m.value("scale"), shapes["q"][-1]
    mask = m.index.arguments(call)["attn_mask"]
    return Attention(
        batch=batch, rows=result[-2], keys=shapes["k"][-2], depth=depth, width=result[-1],
        q=heads["q"], k=heads["k"], v=heads["v"], out=Heads.of(whole, _SPLIT if "out" in split else None),
        scale=float(scale) if isinstance(scale, int | float) else 1 / sqrt(depth),
        mask=Mask(m.spec("mask").shape, m.spec("mask").dtype == torch.bool) if mask is not None else None,
        causal=m.value("causal") is True,
        shared=shapes["q"][-3] // shapes["k"][-3] if m.value("gqa") is True else 1,
        dtype=dtype_name(operands["q"].dtype),
    )  # fmt: skip


def _viewed(spec: TensorSpec, split: bool) -> tuple[int, ...]:
    shape = spec.shape
    return (shape[0], shape[2], shape[1], shape[3]) if split else shape


def _suits(m: MatchView) -> str | None:
    """Operands of one type of floats; a mask of booleans or of that type; heads of k and v in the same numbers."""
    types = list(dict.fromkeys(dtype_name(m.spec(name).dtype) for name in ("q", "k", "v")))
    if len(types) > 1 or types[0] not in FLOATS:
        return f"operands of {' and '.join(types)}, expected one of {', '.join(FLOATS)}"
    ranks = [len(m.spec(name).shape) for name in ("q", "k", "v")]
    if min(ranks) < 2:
        return f"operands of {ranks} dimensions, expected two or more"
    if "mask" in m and dtype_name(m.spec("mask").dtype) not in ("bool", types[0]):
        return f"a mask of {dtype_name(m.spec('mask').dtype)}, expected bool or {types[0]}"
    if m.value("gqa") is True and (min(ranks) < 3 or m.spec("k").shape[-3] != m.spec("v").shape[-3]):
        return "grouped heads of k and v in different numbers"
    return None


def _attention(q: Expression, k: Expression, v: Expression) -> Op:
    mask = either(any_("mask"), None)
    called = op(
        "aten.scaled_dot_product_attention.default", q, k, v, mask, 0.0, attr("causal"),
        scale=attr("scale"), enable_gqa=attr("gqa"),
    )  # fmt: skip
    return called.named("attention")


def _declare(name: str, pattern: Expression, split: tuple[str, ...] = ()) -> None:
    for kind in KINDS:
        module = _MODULES[kind]

        def within(m: MatchView, rounds: Callable[[Attention], int] = module.rounds) -> str | None:
            return within_rounds(m, rounds(_described(m, split)))

        def write(m: MatchView, dispatch: Callable[[Attention], Dispatch] = module.dispatch) -> Dispatch:
            return dispatch(_described(m, split))

        kernel("webgpu", pattern, all_of(some_elements, bindable, _suits, within), name, Schedule(kind, "attention"))(
            write
        )


_declare("attention", _attention(any_("q"), any_("k"), any_("v")))
