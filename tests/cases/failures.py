"""Small programs on which real platforms went wrong, their right answers, and how to compare.

Only torch and the standard library are used.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAN, INF = float("nan"), float("inf")

FAULT_CLASSES = {
    "transcendental": "a function is computed by a formula that overflows, cancels or loses its argument far from 0",
    "nonfinite": "softmax rows, masks, -inf and NaN: swallowed, invented or moved",
    "half_range": "a 16-bit value, sum, square or index leaves its range or its exact integers",
    "integer_dtype": "integers, bool, rounding, sign, width and the dtype of a result",
    "layout_indexing": "strides, offsets, broadcast, index tensors, negative dims, default arguments",
    "size_limits": "nothing at all, one too many, or more than one dispatch can cover",
    "fusion_second_user": "two ops are merged although something else still reads the value between them",
    "state_alias": "buffer writes lost, read at the wrong time, or results that share memory",
    "precision": "less precision than asked for, where a loose tolerance does not see it",
    "graph_cut": "cutting the graph makes a cycle, loses a value, doubles a weight or cannot be run",
    "measuring": "the right result, but a cost that was measured wrongly or not at all",
    "caches": "an answer kept for one graph is given for another",
}


@dataclass(frozen=True)
class Case:
    """One small program with its right answer.

    ``make()`` returns ``(target, calls, expected, rule)``:

    * ``target``: an ``nn.Module`` or a function; or a tuple of modules, then call ``i`` goes to
      ``target[i]`` and all of them share one plan/compile cache.
    * ``calls``: list of argument tuples, made one after the other on the same target, so state counts.
    * ``expected``: one tuple of tensors per call (empty for ``raises``).
    * ``rule``: see :func:`compare`.

    Every ``make()`` is deterministic and builds everything afresh.
    """

    name: str
    fault_class: str
    make: Callable[[], tuple]
    note: str = ""


@dataclass(frozen=True)
class NegativeControl:
    """A case for which ``other()`` is a different answer that must *not* be reported as a fault."""

    name: str
    fault_class: str
    make: Callable[[], tuple]
    other: Callable[[], list]
    note: str = ""


class Box(nn.Module):
    """A module whose forward is ``fn(self, *args)``; tensors become buffers, modules submodules."""

    def __init__(self, fn, **parts):
        super().__init__()
        self._fn = fn
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.register_buffer(name, part)
        self.eval().requires_grad_(False)

    def forward(self, *args):
        return self._fn(self, *args)


def seeded(seed: int, *shape: int, dtype=torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def t(*values, dtype=torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def as_tuple(value) -> tuple:
    if isinstance(value, Tensor):
        return (value,)
    return tuple(x for v in value for x in as_tuple(v))


def eager(build: Callable[[], object], calls: list) -> list:
    """The outputs of a fresh target, each copied before the next call."""
    target = build()
    return [tuple(x.detach().clone() for x in as_tuple(target(*args))) for args in calls]


DEFAULT_TOLERANCE = {  # rtol, atol
    torch.float64: (1e-9, 1e-12),
    torch.float32: (2e-5, 2e-6),
    torch.float16: (4e-3, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
}


def compare(rule: str, want: tuple, got: tuple, args: tuple = ()) -> str:
    """``'ok'``, ``'undefined'`` or ``'wrong: why'``. Shape and dtype always count; -0.0 equals 0.0.

    * ``exact``: equal, NaN where NaN.
    * ``close [RTOL ATOL]``: NaN and inf in the same places, the rest within tolerance
      (:data:`DEFAULT_TOLERANCE` of the dtype if not given).
    * ``tie-index DIM``: indices may differ if they point at equal values of ``args[0]``.
    * ``defined-only``: positions where ``args[0]`` is not finite or beyond +-120 are left out.
    * ``undefined``: the reference itself is a convention; report as such, never as a fault.
    * ``statistical``: random; only shape, dtype and finiteness count.
    * ``raises NAME``: the call must raise NAME (checked by :func:`check`).
    """
    kind, *rest = rule.split()
    want, got = as_tuple(want), as_tuple(got)
    if kind == "undefined":
        return "undefined"
    if len(want) != len(got):
        return f"wrong: {len(got)} outputs for {len(want)}"
    for w, g in zip(want, got):
        if w.shape != g.shape:
            return f"wrong: shape {tuple(g.shape)} for {tuple(w.shape)}"
        if w.dtype != g.dtype:
            return f"wrong: dtype {g.dtype} for {w.dtype}"
        if kind == "statistical":
            if not torch.isfinite(g).all():
                return "wrong: not finite"
            continue
        if kind == "tie-index":
            x, dim = args[0], int(rest[0])
            w, g = (x.gather(dim, i if i.dim() == x.dim() else i.unsqueeze(dim)) for i in (w, g))
        if kind == "defined-only":
            keep = torch.isfinite(args[0]) & (args[0].abs() <= 120)
            w, g = w[keep], g[keep]
        if kind == "close" and w.is_floating_point():
            rtol, atol = (float(v) for v in rest) if rest else DEFAULT_TOLERANCE[w.dtype]
            same = torch.isclose(g.double(), w.double(), rtol=rtol, atol=atol, equal_nan=True)
        else:
            same = (w == g) | ((w != w) & (g != g))
        if not same.all():
            at = int((~same).flatten().nonzero()[0])
            return f"wrong: {int((~same).sum())} of {same.numel()}, first at {at}: {g.flatten()[at].item()} for {w.flatten()[at].item()}"
    return "ok"


def check(case, wrap: Callable = lambda target, args: target) -> str:
    """Run a case; ``wrap(target, first_args)`` puts the target on a platform. Results are compared after the last call."""
    target, calls, expected, rule = case.make()
    if rule.startswith("raises"):
        try:
            got = wrap(target, calls[0])(*calls[0])
        except Exception as error:  # the kind of error is the point
            name = rule.split()[1]
            return "ok" if name in {k.__name__ for k in type(error).__mro__} else f"wrong: raised {type(error).__name__}"
        return f"wrong: no error, returned {as_tuple(got)[0].flatten()[:4].tolist()}"
    if isinstance(target, tuple):
        held = [wrap(m, a)(*a) for m, a in zip(target, calls)]
    else:
        runner = wrap(target, calls[0])
        held = [runner(*a) for a in calls]
    words = [compare(rule, w, g, a) for w, g, a in zip(expected, held, calls)]
    return next((w for w in words if w.startswith("wrong")), words[0])


CASES: list[Case] = []
NEGATIVE_CONTROLS: list[NegativeControl] = []


def case(fault_class: str, note: str):
    def keep(make):
        assert fault_class in FAULT_CLASSES
        CASES.append(Case(make.__name__, fault_class, make, note))
        return make
    return keep


def simple(fn, calls, expected, rule, **parts):
    """A case of one function: ``expected`` is written out, or computed by ``fn`` when None."""
    build = (lambda: Box(fn, **{k: v.clone() if isinstance(v, Tensor) else v for k, v in parts.items()}))
    return build(), calls, eager(build, calls) if expected is None else expected, rule


# ---- transcendental ---------------------------------------------------------------------------
@case("transcendental", "GPU shader built-ins form exp(2x), which is inf, and return inf/inf = NaN; right is +-1")
def tanh_far_out():
    return simple(lambda m, x: torch.tanh(x), [(t(46, 100, 1000, -1000, 0.5),)], [(t(1, 1, 1, -1, 0.46211716),)], "close")


@case("transcendental", "shader languages compute a power as exp(b*log(a)): inexact for large a, NaN for negative a; right is a*a")
def square_of_large_negative():
    return simple(lambda m, x: torch.pow(x, 2.0), [(t(-2000.0, -3.0, 0.0),)], [(t(4e6, 9.0, 0.0),)], "close 1e-7 0")


@case("transcendental", "platforms without erf use a short polynomial; right to about 1e-6, and exactly odd")
def erf_known_points():
    return simple(lambda m, x: torch.erf(x), [(t(-4.0, -0.5, 0.0, 0.5, 4.0),)], [(t(-1.0, -0.5204999, 0.0, 0.5204999, 1.0),)], "close 2e-6 1e-6")


# ---- nonfinite --------------------------------------------------------------------------------
@case("nonfinite", "a mobile GPU softmax starts its running maximum from a padding 0, so deep negative rows become 0/0 = NaN; right is uniform")
def softmax_deep_negative_row():
    return simple(lambda m, x: torch.softmax(x, -1), [(torch.full((1, 1, 12), -200.0),)], [(torch.full((1, 1, 12), 1 / 12),)], "close")


@case("nonfinite", "CPU inference engines write relu as a machine max that drops NaN; right keeps NaN")
def relu_keeps_nan():
    return simple(lambda m, x: torch.relu(x), [(t(NAN, -1, 0, 1, INF, -INF),)], [(t(NAN, 0, 0, 1, INF, 0),)], "exact")


@case("nonfinite", "GPU min/max instructions return the other operand beside NaN; right is NaN")
def minimum_keeps_nan():
    return simple(lambda m, a, b: torch.minimum(a, b), [(t(NAN, 1, NAN, 5), t(2, NAN, 3, 4))], [(t(NAN, NAN, NAN, 4),)], "exact")


@case("nonfinite", "shader fast-math folds the NaN test to false; right sees NaN")
def nan_is_seen():
    return simple(lambda m, x: torch.isnan(x), [(t(-1.2, NAN, INF),)], [(t(False, True, False, dtype=torch.bool),)], "exact")


# ---- half_range -------------------------------------------------------------------------------
@case("half_range", "accelerators square in f16: 300*300 is inf, the result is 0 or NaN; right is 1 (accumulate in f32)")
def rms_norm_of_300_in_half():
    return simple(lambda m, x: F.rms_norm(x, (8,), m.w, 1e-5), [(torch.full((1, 8), 300.0).half(),)],
                  [(torch.ones(1, 8).half(),)], "close", w=torch.ones(8).half())


@case("half_range", "a bf16 accumulator stops at 256 when 1 is added; right is 1024")
def thousand_ones_in_bf16():
    return simple(lambda m, x: x.sum(-1), [(torch.ones(2, 1024, dtype=torch.bfloat16),)],
                  [(torch.full((2,), 1024.0, dtype=torch.bfloat16),)], "exact")


# ---- integer_dtype ----------------------------------------------------------------------------
@case("integer_dtype", "compilers map round to the C function that takes halves away from 0; right is to even")
def round_halves():
    return simple(lambda m, x: torch.round(x), [(t(0.5, 1.5, 2.5, -0.5, -1.5, -2.5),)], [(t(0, 2, 2, 0, -2, -2),)], "exact")


@case("integer_dtype", "compilers lower the Python % to the C one; right has the divisor's sign")
def mod_takes_divisor_sign():
    i = torch.int64
    return simple(lambda m, a, b, x: (a % b, x % 2.0), [(t(-7, 7, -7, dtype=i), t(3, -3, -3, dtype=i), t(-5.5))],
                  [(t(2, -2, -1, dtype=i), t(0.5))], "exact")


@case("integer_dtype", "GPU buffers of bool fail to compile or are read as packed words; right is 0 and 1")
def bool_becomes_number():
    b = torch.arange(30) % 3 == 0
    return simple(lambda m, x: (x.int(), x.float()), [(b,)], [(t(*([1, 0, 0] * 10), dtype=torch.int32), t(*([1, 0, 0] * 10)))], "exact")


@case("integer_dtype", "a vector cast reads four bytes as one word, or as signed; right keeps each number")
def bytes_become_floats():
    v = [255, 128, 127, 1, 0, 3, 200]
    return simple(lambda m, x: x.float(), [(t(*v, dtype=torch.uint8),)], [(t(*v),)], "exact")


@case("integer_dtype", "a GPU argmax over integers returns the start value; right is the place of the largest")
def argmax_of_integers():
    return simple(lambda m, x: torch.argmax(x, 0), [(t(14, 13, 11, dtype=torch.int32),)], [(torch.tensor(0),)], "exact")


# ---- layout_indexing --------------------------------------------------------------------------
@case("layout_indexing", "a GPU linear takes the weight's storage and ignores its row step; right uses rows 0 and 2")
def linear_every_second_row():
    return simple(lambda m, x: F.linear(x, m.w[::2]), [(torch.ones(1, 2),)], [(t(1, 9)[None],)], "exact", w=torch.arange(8.0).view(4, 2))


@case("layout_indexing", "a delegate drops the scale of the second operand; right is a + 10*b")
def add_with_alpha():
    return simple(lambda m, a, b: torch.add(a, b, alpha=10), [(t(1, 2), t(3, 4))], [(t(31, 42),)], "exact")


@case("layout_indexing", "a converter flips only the last of several axes; right flips all")
def flip_two_axes():
    return simple(lambda m, x: torch.flip(x, [-1, -2]), [(torch.arange(12.0).view(3, 4),)], [(torch.arange(11.0, -1, -1).view(3, 4),)], "exact")


@case("layout_indexing", "a pool without a stride argument crashes or uses stride 1; right is stride = kernel")
def pool_without_stride():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    return simple(lambda m, x: (F.avg_pool2d(x, 2), F.max_pool2d(x, 2)), [(x,)],
                  [(t(2.5, 4.5, 10.5, 12.5).view(1, 1, 2, 2), t(5, 7, 13, 15).view(1, 1, 2, 2))], "exact")


@case("layout_indexing", "stacking two strided halves (rotary embedding) fails or reads the storage in order; right swaps pairs")
def rotate_pairs():
    return simple(lambda m, x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2), [(torch.arange(8.0),)],
                  [(t(-1, 0, -3, 2, -5, 4, -7, 6),)], "exact")


@case("layout_indexing", "0-d tensors become 1-d at a boundary; right keeps shape ()")
def scalar_tensor_stays_scalar():
    x = torch.arange(12.0).view(3, 4)
    return simple(lambda m, x, s: (x.sum() * s, x.sum() + x, s.reshape(1)), [(x, torch.tensor(2.0))],
                  [(torch.tensor(132.0), 66 + x, t(2.0))], "close")


# ---- size_limits ------------------------------------------------------------------------------
@case("size_limits", "a reduction over no elements returns memory that nothing wrote; right is 0 for sum, 1 for product")
def reduce_nothing():
    return simple(lambda m, x: (x.sum(1), x.prod(1)), [(torch.zeros(2, 0, 4),)], [(torch.zeros(2, 4), torch.ones(2, 4))], "exact")


@case("size_limits", "a zero-byte buffer is refused by the driver; right is an empty result of the right shape")
def move_nothing():
    return simple(lambda m, x, y: (x + y, x.unsqueeze(1).transpose(0, 2)), [(torch.zeros(2, 0), torch.zeros(2, 1))],
                  [(torch.zeros(2, 0), torch.zeros(0, 1, 2))], "exact")


# ---- fusion_second_user -----------------------------------------------------------------------
@case("fusion_second_user", "a product with a relu behind it is merged into one op that is then stored wrongly; right is relu of the product")
def product_then_relu():
    return simple(lambda m, a, b: torch.relu(a * b), [(t(-1, 2), t(3, 4))], [(t(0, 8),)], "exact")


@case("fusion_second_user", "an activation is merged into its linear layer although the raw value is returned too; right returns both")
def raw_value_also_returned():
    def fn(m, x):
        z = F.linear(x, m.w)
        return F.gelu(z), z
    return simple(fn, [(t(1, -2)[None],)], [(F.gelu(t(-3, 1, -5)[None]), t(-3, 1, -5)[None])], "close", w=t(1, 2, 1, 0, 1, 3).view(3, 2))


# ---- state_alias ------------------------------------------------------------------------------
@case("state_alias", "converters drop a write into a buffer without a word; right: each call sees its own write and the next call the last one")
def slot_of_cache_written():
    def fn(m, x):
        before = m.cache.sum(2)
        m.cache[:, :, 3:4, :] = x
        return before, m.cache.sum(2)
    a, b = torch.ones(1, 2, 1, 4), torch.full((1, 2, 1, 4), 5.0)
    return simple(fn, [(a,), (b,)], [(torch.zeros(1, 2, 4), a[:, :, 0]), (a[:, :, 0], b[:, :, 0])], "exact", cache=torch.zeros(1, 2, 8, 4))


@case("state_alias", "a runtime reuses its output buffer, so the second call overwrites the first result; right: results belong to the caller")
def results_outlive_calls():
    calls = [(torch.full((1, 8), float(i)),) for i in range(5)]
    return simple(lambda m, x: x @ m.w, calls, [(torch.full((1, 8), 2.0 * i),) for i in range(5)], "exact", w=2 * torch.eye(8))


# ---- precision --------------------------------------------------------------------------------
@case("precision", "CPUs with bf16 units use them unasked; after a few layers 1e-2 is lost; right is f32 (about 1e-6)")
def chain_of_products_in_f32():
    parts = {f"w{i}": seeded(i, 128, 128) / 11 for i in range(6)}

    def fn(m, x):
        for i in range(6):
            x = torch.tanh(x @ getattr(m, f"w{i}"))
        return x
    x = seeded(99, 4, 128)
    d = x.double()
    for i in range(6):
        d = torch.tanh(d @ parts[f"w{i}"].double())
    return simple(fn, [(x,)], [(d.float(),)], "close 1e-4 1e-5", **parts)


@case("precision", "an op that only copies goes through a narrower type; right is bit for bit")
def copies_are_exact():
    x = seeded(3, 1, 2, 3, 3)
    return simple(lambda m, x: F.interpolate(x, scale_factor=2.0, mode="nearest"), [(x,)],
                  [(x.repeat_interleave(2, 2).repeat_interleave(2, 3),)], "exact")


# ---- graph_cut --------------------------------------------------------------------------------
@case("graph_cut", "two siblings of one producer are cut into two parts, or into one with a cycle; right: one part, no cycle, both values")
def two_siblings():
    def fn(m, x):
        y = x * x
        return torch.sin(y), torch.cos(y)
    x = seeded(5, 8)
    return simple(fn, [(x,)], [(torch.sin((x * x).double()).float(), torch.cos((x * x).double()).float())], "close")


@case("graph_cut", "a constant used by two parts is moved into one of them and missing in the other; right: both see it")
def constant_in_two_parts():
    c, x = seeded(6, 4), seeded(7, 2, 4)
    return simple(lambda m, x: torch.erfinv(torch.tanh(x + m.c) * 0.5) + m.c, [(x,)],
                  [((torch.erfinv(torch.tanh((x + c).double()) * 0.5) + c).float(),)], "close 1e-4 1e-5", c=c)


@case("graph_cut", "an input that is also an output, or one value returned twice, is refused or lost; right: four outputs")
def input_is_output():
    def fn(m, x):
        y = x + 1
        return x, y, y, x
    x = t(1, 2, 3)
    return simple(fn, [(x,)], [(x, x + 1, x + 1, x)], "exact")


# ---- measuring --------------------------------------------------------------------------------
@case("measuring", "every second op is unsupported, so a greedy cut makes dozens of tiny parts, slower than eager; right: one eager part")
def dozens_of_tiny_parts():
    parts = {f"w{i}": seeded(i, 32, 32) / 5 for i in range(24)}

    def f(x, *ws):
        for w in ws:
            x = torch.erfinv(torch.tanh(x @ w) * 0.9)
        return x
    x = seeded(50, 1, 32)
    want = f(x.double(), *(w.double() for w in parts.values())).float()
    return simple(lambda m, x: f(x, *(getattr(m, f"w{i}") for i in range(24))), [(x,)], [(want,)], "close 1e-3 1e-4", **parts)


# ---- caches -----------------------------------------------------------------------------------
@case("caches", "the weights are not part of the key, so the second module gets the first one's answer; right: each its own")
def same_graph_other_weights():
    def one(seed):
        return Box(lambda m, x: F.linear(x, m.w), w=seeded(seed, 4, 4))
    x = seeded(1, 2, 4)
    want = [((x.double() @ seeded(s, 4, 4).double().T).float(),) for s in (11, 12)]
    return (one(11), one(12)), [(x,), (x,)], want, "close"


@case("caches", "the dtype is not part of the key, so an f64 graph is given the f32 kernel; right: each in its own type")
def same_graph_other_dtype():
    def one(dtype):
        return Box(lambda m, x: x * m.c, c=t(1 / 3, dtype=dtype))
    x = t(3.0, 0.1)
    return (one(torch.float32), one(torch.float64)), [(x,), (x.double(),)], \
        [(x * t(1 / 3),), (x.double() * t(1 / 3, dtype=torch.float64),)], "exact"


# ---- must not be reported ---------------------------------------------------------------------
def _tie():
    return simple(lambda m, x: torch.argmax(x, 1), [(t(1, 3, 3, 0)[None],)], [(torch.tensor([1]),)], "tie-index 1")


def _zero():
    return simple(lambda m, x: x * 0.0, [(t(-1, 1),)], [(t(-0.0, 0.0),)], "exact")


def _order():
    x = seeded(8, 4, 256).half()
    return simple(lambda m, x: x.sum(-1), [(x,)], [(x.double().sum(-1).half(),)], "close 4e-3 4e-2")


def _cast():
    return simple(lambda m, x: x.to(torch.int8), [(t(50, -50, NAN, INF, 300),)], [(t(50, -50, 0, 0, 44, dtype=torch.int8),)], "defined-only")


def _order_other():
    x = _order()[1][0][0]
    total = torch.zeros(4, dtype=torch.half)
    for part in x.flip(-1).view(4, 16, 16).float().sum(-1).half().unbind(1):  # 16 at a time, from the other end
        total = total + part
    return [(total,)]


NEGATIVE_CONTROLS += [
    NegativeControl("argmax_tie", "integer_dtype", _tie, lambda: [(torch.tensor([2]),)],
                    "two equal maxima: either index is right, compare the values pointed at"),
    NegativeControl("signed_zero", "nonfinite", _zero, lambda: [(t(0.0, 0.0),)], "0.0 for -0.0"),
    NegativeControl("half_sum_in_other_order", "half_range", _order, _order_other, "an f16 sum in another order, within the bound of its dtype"),
    NegativeControl("nan_to_integer", "integer_dtype", _cast, lambda: [(t(50, -50, -128, 127, 127, dtype=torch.int8),)],
                    "NaN, inf and out-of-range values have no right integer; the finite ones do"),
]
