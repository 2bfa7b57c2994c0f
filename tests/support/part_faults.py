"""Broken and right platforms that run several ATen calls as one part, in the form of faults with ``ops``.

Each ``apply(steps)`` gives the results of a list of steps; the records here are this module's own. ``MUTANTS`` are
wrong in a way that shows only when the calls stand together; ``CONTROLS`` are right, and round in other ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Results = list[Any]
LEFT = object()  # what a rule returns where it does not bite


@dataclass(frozen=True)
class Ref:
    index: int
    item: int | None = None


@dataclass(frozen=True)
class Step:
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class PartFault:
    name: str
    ops: tuple[str, ...]
    apply: Callable[[list[Step]], Results]
    fault_class: str = "fusion_second_user"


def fill(value: Any, results: Results) -> Any:
    if isinstance(value, Ref):
        return results[value.index] if value.item is None else results[value.index][value.item]
    if isinstance(value, tuple | list):
        return type(value)(fill(entry, results) for entry in value)
    return value


def right(step: Step, results: Results) -> Any:
    space, name, overload = step.op.split(".")
    target = getattr(getattr(getattr(torch.ops, space), name), overload)
    return target(*fill(step.args, results), **{key: fill(value, results) for key, value in step.kwargs.items()})


def reads(step: Step, index: int) -> bool:
    found = [leaf for value in (*step.args, *step.kwargs.values()) for leaf in flat(value)]
    return any(isinstance(leaf, Ref) and leaf.index == index for leaf in found)


def flat(value: Any) -> list[Any]:
    return [leaf for entry in value for leaf in flat(entry)] if isinstance(value, tuple | list) else [value]


def users(steps: list[Step], index: int) -> list[int]:
    return [place for place, step in enumerate(steps) if reads(step, index)]


def made_by(steps: list[Step], value: Any, *ops: str) -> bool:
    return isinstance(value, Ref) and steps[value.index].op in ops


Rule = Callable[[list[Step], int, Results], Any]
MUTANTS: list[PartFault] = []
CONTROLS: list[PartFault] = []


def with_rule(rule: Rule) -> Callable[[list[Step]], Results]:
    def apply(steps: list[Step]) -> Results:
        results: Results = []
        for place, step in enumerate(steps):
            found = rule(steps, place, results)
            results.append(right(step, results) if found is LEFT else found)
        return results

    return apply


def aten(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" for name in names.split())


def mutant(ops: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        MUTANTS.append(PartFault(rule.__name__, aten(ops), with_rule(rule)))
        return rule

    return keep


def control(ops: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        CONTROLS.append(PartFault(rule.__name__, aten(ops), with_rule(rule)))
        return rule

    return keep


def whole(ops: str, kind: list[PartFault]) -> Callable[[Callable[[list[Step]], Results]], Any]:
    def keep(apply: Callable[[list[Step]], Results]) -> Any:
        kind.append(PartFault(apply.__name__, aten(ops), apply))
        return apply

    return keep


# ---- values between -----------------------------------------------------------------------------------------------
@mutant("mul.Tensor relu.default")
def mul_loses_relu(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    follows = step.op == "aten.relu.default" and made_by(steps, step.args[0], "aten.mul.Tensor")
    return fill(step.args[0], results) if follows else LEFT


def raw_is_activated(producer: str, activation: str) -> Rule:
    """The value between is stored after the activation: its other readers see that."""

    def rule(steps: list[Step], place: int, results: Results) -> Any:
        step = steps[place]
        for arg in step.args:
            if made_by(steps, arg, producer) and step.op != activation:
                fused = [k for k in users(steps, arg.index) if steps[k].op == activation]
                if fused:
                    swapped: Results = list(results)
                    swapped[arg.index] = right(steps[fused[0]], results)
                    return right(step, swapped)
        return LEFT

    return rule


for producer, activation in (
    ("linear.default", "relu.default"), ("linear.default", "gelu.default"), ("conv2d.default", "relu.default"),
    ("add.Tensor", "sigmoid.default"), ("matmul.default", "tanh.default"),
):  # fmt: skip
    ops = aten(f"{producer} {activation}")
    MUTANTS.append(PartFault(f"raw_{ops[0]}_{ops[1]}", ops, with_rule(raw_is_activated(*ops))))


@mutant("conv2d.default batch_norm.default")
def folded_with_other_eps(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op != "aten.batch_norm.default" or not made_by(steps, step.args[0], "aten.conv2d.default"):
        return LEFT
    args = list(fill(step.args, results))
    if args[5]:
        return LEFT
    args[7] = args[7] * 10
    return torch.ops.aten.batch_norm.default(*args)


@mutant("conv2d.default batch_norm.default")
def folding_forgets_the_bias(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op != "aten.batch_norm.default" or not made_by(steps, step.args[0], "aten.conv2d.default"):
        return LEFT
    conv = steps[step.args[0].index]
    args = list(fill(step.args, results))
    if args[5] or len(conv.args) < 3 or conv.args[2] is None:
        return LEFT
    args[0] = args[0] - fill(conv.args[2], results).reshape(-1, 1, 1)
    return torch.ops.aten.batch_norm.default(*args)


@mutant("add.Tensor layer_norm.default")
def residual_is_normed(steps: list[Step], place: int, results: Results) -> Any:
    return raw_is_activated("aten.add.Tensor", "aten.layer_norm.default")(steps, place, results)


@mutant("div.Tensor softmax.int")
def softmax_drops_the_scale(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.softmax.int" and made_by(steps, step.args[0], "aten.div.Tensor"):
        x = fill(steps[step.args[0].index].args[0], results)
        if x.shape == results[step.args[0].index].shape and x.is_floating_point():
            return torch.softmax(x, step.args[1]).to(results[step.args[0].index].dtype)
    return LEFT


@mutant("silu.default mul.Tensor")
def silu_of_the_other(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.mul.Tensor" and made_by(steps, step.args[0], "aten.silu.default"):
        x, other = fill(steps[step.args[0].index].args[0], results), fill(step.args[1], results)
        if isinstance(other, torch.Tensor) and other.is_floating_point():
            return (x * F.silu(other)).to(torch.result_type(x, other))
    return LEFT


@mutant("to.dtype to.dtype")
def cast_pair_removed(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.to.dtype" and made_by(steps, step.args[0], "aten.to.dtype"):
        x = fill(steps[step.args[0].index].args[0], results)
        if isinstance(x, torch.Tensor) and x.dtype == step.args[1]:
            return x
    return LEFT


@mutant("sum.dim_IntList div.Tensor")
def mean_over_everything(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.div.Tensor" and made_by(steps, step.args[0], "aten.sum.dim_IntList"):
        x = fill(steps[step.args[0].index].args[0], results)
        total = fill(step.args[0], results)
        if total.is_floating_point() and total.numel() and x.numel() != total.numel():
            made = total / (x.numel() / total.numel())
            return torch.broadcast_to(made, right(step, results).shape).to(right(step, results).dtype)
    return LEFT


@mutant("mul.Tensor add.Tensor")
def residual_matched_twice(steps: list[Step], place: int, results: Results) -> Any:
    """Mul + add are one: a second add of the same product adds the first one's operand again."""
    step = steps[place]
    if step.op == "aten.add.Tensor" and made_by(steps, step.args[0], "aten.mul.Tensor"):
        adds = [k for k in users(steps, step.args[0].index) if steps[k].op == "aten.add.Tensor" and k < place]
        if adds and results[adds[0]].shape == right(step, results).shape:
            return results[adds[0]]
    return LEFT


@mutant("mm.default add.Tensor")
def alpha_is_dropped_behind_mm(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.add.Tensor" and any(made_by(steps, arg, "aten.mm.default") for arg in step.args):
        return right(Step(step.op, step.args, {}), results)
    return LEFT


@mutant("relu.default avg_pool2d.default")
def pool_before_relu(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.avg_pool2d.default" and made_by(steps, step.args[0], "aten.relu.default"):
        inner = Step(step.op, (steps[step.args[0].index].args[0], *step.args[1:]), step.kwargs)
        return torch.relu(right(inner, results))
    return LEFT


@mutant("transpose.int reshape.default")
def reshape_forgets_transpose(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.reshape.default" and made_by(steps, step.args[0], "aten.transpose.int"):
        return right(Step(step.op, (steps[step.args[0].index].args[0], *step.args[1:]), step.kwargs), results)
    return LEFT


@mutant("layer_norm.default linear.default")
def folding_drops_beta(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.linear.default" and made_by(steps, step.args[0], "aten.layer_norm.default"):
        norm = steps[step.args[0].index]
        args = list(norm.args)
        if len(args) > 3 and args[3] is not None:
            args[3] = None
            plain = right(Step(norm.op, tuple(args), norm.kwargs), results)
            swapped = list(results)
            swapped[step.args[0].index] = plain
            return right(step, swapped)
    return LEFT


@mutant("exp.default sum.dim_IntList div.Tensor")
def softmax_over_the_last(steps: list[Step], place: int, results: Results) -> Any:
    """Exp / sum(exp) is taken for a softmax over the last dimension, whatever the sum's dimensions are."""
    step = steps[place]
    if step.op != "aten.div.Tensor" or not made_by(steps, step.args[0], "aten.exp.default"):
        return LEFT
    other = step.args[1]
    if made_by(steps, other, "aten.sum.dim_IntList") and steps[other.index].args[0] == step.args[0]:
        x = fill(step.args[0], results)
        made = x / x.sum(-1, keepdim=True)
        return made if made.shape == right(step, results).shape else LEFT
    return LEFT


@mutant("masked_fill.Scalar softmax.int")
def mask_behind_softmax(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.softmax.int" and made_by(steps, step.args[0], "aten.masked_fill.Scalar"):
        x, mask, _ = fill(steps[step.args[0].index].args, results)
        made = torch.softmax(torch.broadcast_to(x, results[step.args[0].index].shape), step.args[1])
        return made.masked_fill(mask, 0.0).to(right(step, results).dtype)
    return LEFT


@mutant("add.Tensor relu.default")
def bias_of_one_row(steps: list[Step], place: int, results: Results) -> Any:
    """Only where an operand is broadcast: its first element is taken for all."""
    step = steps[place]
    if step.op == "aten.relu.default" and made_by(steps, step.args[0], "aten.add.Tensor"):
        add = steps[step.args[0].index]
        x, y = fill(add.args[0], results), fill(add.args[1], results)
        if isinstance(y, torch.Tensor) and y.dim() == 1 and x.dim() == 2 and y.numel() > 1:
            return torch.relu(torch.add(x, y[0], **add.kwargs))
    return LEFT


@mutant("bmm.default softmax.int bmm.default")
def attention_reuses_the_first_operand(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.bmm.default" and made_by(steps, step.args[0], "aten.softmax.int"):
        inner = steps[step.args[0].index].args[0]
        if made_by(steps, inner, "aten.bmm.default"):
            weights = fill(inner, results)
            return torch.bmm(weights, fill(step.args[1], results))
    return LEFT


@mutant("mul.Tensor add.Tensor")
def half_sums_in_bfloat16(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.add.Tensor" and made_by(steps, step.args[0], "aten.mul.Tensor"):
        made = right(step, results)
        return made.bfloat16().to(made.dtype) if made.dtype == torch.float16 else LEFT
    return LEFT


@mutant("add.Tensor mul.Tensor")
def square_of_sum_uses_one(steps: list[Step], place: int, results: Results) -> Any:
    """A sum in both operands of a product: the second reading is the sum's first operand."""
    step = steps[place]
    if (
        step.op == "aten.mul.Tensor"
        and made_by(steps, step.args[0], "aten.add.Tensor")
        and step.args[0] == step.args[1]
    ):
        x, y = fill(step.args[0], results), fill(steps[step.args[0].index].args[0], results)
        return x * y if isinstance(y, torch.Tensor) and (x * y).shape == x.shape else LEFT
    return LEFT


@mutant("cat.default relu.default")
def relu_of_the_first_part(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.relu.default" and made_by(steps, step.args[0], "aten.cat.default"):
        cat = steps[step.args[0].index]
        parts = fill(cat.args[0], results)
        dim = cat.args[1] if len(cat.args) > 1 else 0
        return torch.cat([torch.relu(parts[0]), *parts[1:]], dim)
    return LEFT


@mutant("sigmoid.default mul.Tensor")
def swish_for_any_product(steps: list[Step], place: int, results: Results) -> Any:
    """Sigmoid(x) * y is taken for sigmoid(x) * x."""
    step = steps[place]
    if step.op == "aten.mul.Tensor" and made_by(steps, step.args[0], "aten.sigmoid.default"):
        x, y = fill(steps[step.args[0].index].args[0], results), fill(step.args[1], results)
        same = isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype
        return torch.sigmoid(x) * x if same else LEFT
    return LEFT


# ---- results and memory ---------------------------------------------------------------------------------------------
def one_output_buffer() -> Callable[[list[Step]], Results]:
    held: dict[tuple[Any, ...], torch.Tensor] = {}

    def apply(steps: list[Step]) -> Results:
        results: Results = []
        for step in steps:
            made = right(step, results)
            if step.op == "aten.tanh.default" and made_by(steps, step.args[0], "aten.linear.default"):
                made = held.setdefault((tuple(made.shape), made.dtype), torch.empty_like(made)).copy_(made)
            results.append(made)
        return results

    return apply


MUTANTS.append(PartFault("one_output_buffer", aten("linear.default tanh.default"), one_output_buffer(), "state_alias"))


def share(a: Any, b: Any) -> bool:
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return tensors and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@whole("copy_.default sum.dim_IntList", MUTANTS)
def sum_reads_before_copy(steps: list[Step]) -> Results:
    """A sum of what a copy has written gives the sum of what was there before."""
    results: Results = []
    olds: dict[int, torch.Tensor] = {}
    for place, step in enumerate(steps):
        args = fill(step.args, results)
        if step.op == "aten.copy_.default":
            olds[place] = args[0].clone()
        copies = [k for k in olds if k < place and share(results[k], args[0])]
        made = right(step, results)
        if step.op == "aten.sum.dim_IntList" and copies:
            before = right(Step(step.op, (olds[copies[-1]], *step.args[1:]), step.kwargs), results)
            made = before if before.shape == made.shape else made
        results.append(made)
    return results


@mutant("slice.Tensor copy_.default")
def copy_into_slice_is_lost(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    lost = step.op == "aten.copy_.default" and made_by(steps, step.args[0], "aten.slice.Tensor")
    return fill(step.args[0], results).clone() if lost else LEFT


@mutant("slice.Tensor copy_.default")
def slice_write_off_by_one(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.copy_.default" and made_by(steps, step.args[0], "aten.slice.Tensor"):
        base, *rest = fill(steps[step.args[0].index].args, results)
        view = fill(step.args[0], results)
        dim = rest[0] if rest else 0
        if base.dim() and view.shape[dim] < base.shape[dim]:
            old = base.clone()
            right(step, results)
            base.copy_(torch.where(base != old, old, old))
            shifted = torch.roll(right(Step(step.op, (view.clone(), *step.args[1:]), {}), results), 1, dim)
            return view.copy_(shifted)
    return LEFT


@mutant("transpose.int copy_.default")
def transposed_write(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.copy_.default" and made_by(steps, step.args[0], "aten.transpose.int"):
        view, source = fill(step.args[0], results), fill(step.args[1], results)
        base = fill(steps[step.args[0].index].args[0], results)
        base.copy_(torch.broadcast_to(source, view.shape).reshape(base.shape))
        return view
    return LEFT


@mutant("index_put_.default sum.dim_IntList")
def write_comes_before_the_read(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op != "aten.sum.dim_IntList" or not isinstance(step.args[0], torch.Tensor):
        return LEFT
    for later in steps[place + 1 :]:
        if later.op == "aten.index_put_.default" and share(later.args[0], step.args[0]):
            try:
                written = right(Step(later.op, (later.args[0].clone(), *later.args[1:]), later.kwargs), results)
            except IndexError:
                return LEFT
            if written.shape == step.args[0].shape:
                return right(Step(step.op, (written, *step.args[1:]), step.kwargs), results)
    return LEFT


@whole("add_.Tensor mul.Tensor", MUTANTS)
def added_once_per_reader(steps: list[Step]) -> Results:
    results: Results = []
    for place, step in enumerate(steps):
        results.append(right(step, results))
        if step.op == "aten.add_.Tensor":
            target = results[-1]
            later = [s for s in steps[place + 1 :] if any(a is step.args[0] or reads(s, place) for a in s.args)]
            if len(later) > 1:
                target.add_(fill(step.args[1], results), **step.kwargs)
    return results


@mutant("linear.default relu_.default")
def in_place_on_a_copy(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.relu_.default" and made_by(steps, step.args[0], "aten.linear.default"):
        return torch.relu(fill(step.args[0], results))
    return LEFT


@whole("select.int add_.Tensor", MUTANTS)
def old_view_is_a_copy(steps: list[Step]) -> Results:
    """A view that is made before an add_ to its base keeps what it showed."""
    results: Results = []
    for step in steps:
        made = right(step, results)
        base = step.args[0] if step.args else None
        later = [
            s for s in steps if s.op == "aten.add_.Tensor" and isinstance(base, torch.Tensor) and s.args[0] is base
        ]
        results.append(made.clone() if step.op == "aten.select.int" and later else made)
    return results


@whole("neg.default copy_.default", MUTANTS)
def recomputed_behind_the_write(steps: list[Step]) -> Results:
    """What was read from a buffer before a write to it is computed again for its last reader, behind the write."""
    results: Results = []
    for place, step in enumerate(steps):
        again = list(results)
        for index, earlier in enumerate(steps[:place]):
            wrote = any(s.op == "aten.copy_.default" and share(results[index + 1 + k], earlier.args[0])
                        for k, s in enumerate(steps[index + 1 : place]))  # fmt: skip
            if earlier.op == "aten.neg.default" and isinstance(earlier.args[0], torch.Tensor) and wrote:
                again[index] = right(earlier, results)
        results.append(right(step, again))
    return results


@whole("copy_.default mul_.Tensor", MUTANTS)
def writes_change_places(steps: list[Step]) -> Results:
    """A product in place behind a copy to the same buffer runs first."""
    results: Results = [None] * len(steps)
    order = list(range(len(steps)))
    for k in range(len(steps) - 1):
        one, two = steps[k], steps[k + 1]
        pair = (one.op, two.op) == ("aten.copy_.default", "aten.mul_.Tensor")
        if pair and one.args[0] is two.args[0] and not reads(two, k):
            order[k], order[k + 1] = k + 1, k
    for place in order:
        results[place] = right(steps[place], results)
    return results


@whole("clone.default add_.Tensor", MUTANTS)
def clone_is_elided(steps: list[Step]) -> Results:
    """A copy made before a write to its source shares the source's memory."""
    results: Results = []
    for step in steps:
        elided = step.op == "aten.clone.default" and not step.kwargs
        results.append(fill(step.args[0], results) if elided else right(step, results))
    return results


# ---- settings, diamonds, items, instances ---------------------------------------------------------------------------
@mutant("mul.Tensor amax.default sub.Tensor")
def largest_of_the_last_dimension(steps: list[Step], place: int, results: Results) -> Any:
    """X - amax(x, dims, keepdim) is taken for a difference over the last dimension."""
    step = steps[place]
    if step.op != "aten.sub.Tensor" or not made_by(steps, step.args[0], "aten.mul.Tensor"):
        return LEFT
    other = step.args[1]
    if not made_by(steps, other, "aten.amax.default") or steps[other.index].args[0] != step.args[0]:
        return LEFT
    x, declared = fill(step.args[0], results), right(step, results)
    if results[other.index].dim() != x.dim() or x.dim() == 0:
        return LEFT
    made = x - x.amax(-1, keepdim=True)
    return made if made.shape == declared.shape else LEFT


@mutant("tanh.default sum.dim_IntList div.Tensor")
def quotient_turned_over(steps: list[Step], place: int, results: Results) -> Any:
    """Sum(t) / t is taken for t / sum(t)."""
    step = steps[place]
    if step.op == "aten.div.Tensor" and made_by(steps, step.args[0], "aten.sum.dim_IntList"):
        inner = steps[step.args[0].index].args[0]
        if made_by(steps, inner, "aten.tanh.default") and step.args[1] == inner:
            return fill(inner, results) / fill(step.args[0], results)
    return LEFT


@mutant("abs.default mean.dim")
def mean_divides_by_the_first(steps: list[Step], place: int, results: Results) -> Any:
    """A mean over several dimensions, kept, divides by the size of the first of them only."""
    step = steps[place]
    if step.op == "aten.mean.dim" and made_by(steps, step.args[0], "aten.abs.default"):
        x, dims, *more = fill(step.args, results)
        if dims and len(dims) > 1 and more and more[0] is True:
            made = right(step, results)
            return (x.sum(dims, keepdim=True) / x.shape[dims[0]]).to(made.dtype)
    return LEFT


@mutant("split.Tensor neg.default")
def middle_part_is_the_first(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.neg.default" and made_by(steps, step.args[0], "aten.split.Tensor"):
        parts, item = results[step.args[0].index], step.args[0].item
        if item is not None and 0 < item < len(parts) - 1 and parts[0].shape == parts[item].shape:
            return -parts[0]
    return LEFT


@mutant("var_mean.correction sub.Tensor")
def both_items_change_places(steps: list[Step], place: int, results: Results) -> Any:
    """Mean - variance is computed as variance - mean; either alone is right."""
    step = steps[place]
    refs = [arg for arg in step.args if made_by(steps, arg, "aten.var_mean.correction")]
    if step.op == "aten.sub.Tensor" and [ref.item for ref in refs] == [1, 0]:
        return right(Step(step.op, (refs[1], refs[0]), step.kwargs), results)
    return LEFT


@mutant("exp.default log.default")
def latest_operand_is_taken(steps: list[Step], place: int, results: Results) -> Any:
    """Log(exp(x)) gives the operand of whichever exp ran last."""
    step = steps[place]
    if step.op == "aten.log.default" and made_by(steps, step.args[0], "aten.exp.default"):
        last = max(k for k in range(place) if steps[k].op == "aten.exp.default")
        x = fill(steps[last].args[0], results)
        return torch.log(torch.exp(x)) if x.shape == fill(step.args[0], results).shape else LEFT
    return LEFT


@whole("gelu.default neg.default", MUTANTS)
def views_do_not_keep_memory(steps: list[Step]) -> Results:
    """The memory of a result that no later step reads itself is given to the next result of its shape."""
    results: Results = []
    for place, step in enumerate(steps):
        made = right(step, results)
        for index, earlier in enumerate(results):
            viewed = any(share(entry, earlier) for entry in results[index + 1 :])
            free = steps[index].op == "aten.gelu.default" and viewed and max(users(steps, index)) < place
            if free and step.op == "aten.gelu.default" and earlier.shape == made.shape and earlier.dtype == made.dtype:
                made = earlier.copy_(made)
                break
        results.append(made)
    return results


@mutant("transpose.int")
def two_transposes_cancel(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.transpose.int" and made_by(steps, step.args[0], "aten.transpose.int"):
        x, declared = fill(steps[step.args[0].index].args[0], results), right(step, results)
        return x if x.shape == declared.shape else LEFT
    return LEFT


@mutant("permute.default")
def permutations_in_the_wrong_order(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.permute.default" and made_by(steps, step.args[0], "aten.permute.default"):
        x, first = fill(steps[step.args[0].index].args, results)
        return x.permute([step.args[1][k] for k in first])
    return LEFT


def sliced(args: tuple[Any, ...]) -> tuple[Any, int, int, int]:
    """What is sliced, the dimension, the start and the step."""
    dim, start, _, stride = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])
    return args[0], dim, start or 0, stride


@mutant("slice.Tensor")
def slices_forget_the_first_step(steps: list[Step], place: int, results: Results) -> Any:
    """The start of a slice of a slice counts elements of the base."""
    step = steps[place]
    if step.op == "aten.slice.Tensor" and made_by(steps, step.args[0], "aten.slice.Tensor"):
        base, dim, start, stride = sliced(fill(steps[step.args[0].index].args, results))
        _, own, begin, _ = sliced(step.args)
        declared = right(step, results)
        if own != dim or begin <= 0 or start < 0 or stride == 1:
            return LEFT
        made = base.narrow(dim, start + begin, max(base.shape[dim] - start - begin, 0))
        return made.narrow(dim, 0, declared.shape[dim]) if made.shape[dim] >= declared.shape[dim] else LEFT
    return LEFT


@mutant("relu.default sigmoid.default tanh.default")
def first_sibling_overwrites(steps: list[Step], place: int, results: Results) -> Any:
    """A tanh behind a sigmoid of the same relu reads what the sigmoid has left there."""
    step = steps[place]
    if step.op == "aten.tanh.default" and made_by(steps, step.args[0], "aten.relu.default"):
        before = [k for k in users(steps, step.args[0].index) if steps[k].op == "aten.sigmoid.default" and k < place]
        return torch.tanh(results[before[0]]) if before else LEFT
    return LEFT


@mutant("add.Tensor mul.Tensor")
def doubled_value_is_halved(steps: list[Step], place: int, results: Results) -> Any:
    """The second of two products that read x + x reads x."""
    step = steps[place]
    for arg in step.args if step.op == "aten.mul.Tensor" else ():
        if made_by(steps, arg, "aten.add.Tensor"):
            x, y = steps[arg.index].args[:2]
            muls = [k for k in users(steps, arg.index) if steps[k].op == "aten.mul.Tensor"]
            if x is y and isinstance(x, torch.Tensor) and len(muls) > 1 and place == muls[1]:
                swapped = list(results)
                swapped[arg.index] = x
                return right(step, swapped)
    return LEFT


@mutant("sub.Tensor relu.default")
def number_is_added(steps: list[Step], place: int, results: Results) -> Any:
    """Relu(x - c) adds c where it is a number."""
    step = steps[place]
    if step.op == "aten.relu.default" and made_by(steps, step.args[0], "aten.sub.Tensor"):
        x, c = fill(steps[step.args[0].index].args, results)
        return torch.relu(x + c).to(right(step, results).dtype) if isinstance(c, int | float) else LEFT
    return LEFT


@mutant("exp.default sub.Tensor")
def factor_on_the_second_is_lost(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.sub.Tensor" and made_by(steps, step.args[1], "aten.exp.default") and step.kwargs:
        return right(Step(step.op, step.args, {}), results)
    return LEFT


@mutant("cumsum.default flip.default")
def only_the_first_is_flipped(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.flip.default" and made_by(steps, step.args[0], "aten.cumsum.default"):
        return torch.flip(fill(step.args[0], results), step.args[1][:1])
    return LEFT


# ---- right platforms ------------------------------------------------------------------------------------------------
def doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return type(value)(doubled(entry) for entry in value) if isinstance(value, tuple | list) else value


def fused_in_double(producer: str, consumer: str) -> Rule:
    """The pair is computed in float64 and rounded once, the value between is recomputed for others."""

    def rule(steps: list[Step], place: int, results: Results) -> Any:
        step = steps[place]
        if step.op != consumer or not any(made_by(steps, leaf, producer) for leaf in flat(step.args)):
            return LEFT
        declared = right(step, results)
        if not isinstance(declared, torch.Tensor) or not declared.is_floating_point():
            return LEFT
        wide = [doubled(result) for result in results]
        for leaf in flat(step.args):
            if made_by(steps, leaf, producer):
                made = steps[leaf.index]
                wide[leaf.index] = right(Step(made.op, doubled(made.args), made.kwargs), wide)
        return right(Step(step.op, doubled(step.args), step.kwargs), wide).to(declared.dtype)

    return rule


for producer, consumer in (
    ("mul.Tensor", "add.Tensor"), ("linear.default", "gelu.default"), ("add.Tensor", "layer_norm.default"),
    ("conv2d.default", "batch_norm.default"), ("matmul.default", "tanh.default"), ("sub.Tensor", "exp.default"),
    ("mul.Tensor", "sum.dim_IntList"), ("div.Tensor", "softmax.int"), ("silu.default", "mul.Tensor"),
    ("mul.Tensor", "floor.default"), ("add.Tensor", "argmax.default"),
):  # fmt: skip
    ops = aten(f"{producer} {consumer}")
    CONTROLS.append(PartFault(f"double_{ops[0]}_{ops[1]}", ops, with_rule(fused_in_double(*ops))))


@control("linear.default relu.default")
def linear_in_blocks(steps: list[Step], place: int, results: Results) -> Any:
    """Summed from the other end, in blocks."""
    step = steps[place]
    if step.op != "aten.linear.default":
        return LEFT
    x, w, *b = fill(step.args, results)
    if w.dtype != torch.float32 or w.dim() != 2 or w.shape[1] < 2:
        return LEFT
    half = w.shape[1] // 2
    made = F.linear(x[..., half:], w[:, half:]) + F.linear(x[..., :half], w[:, :half])
    return made + b[0] if b and b[0] is not None else made


@control("sum.dim_IntList div.Tensor")
def sum_in_another_order(steps: list[Step], place: int, results: Results) -> Any:
    step = steps[place]
    if step.op == "aten.sum.dim_IntList" and not step.kwargs and len(step.args) > 1 and step.args[1]:
        x = fill(step.args[0], results)
        return right(Step(step.op, (x.flip(step.args[1]).contiguous(), *step.args[1:]), {}), results)
    return LEFT


@control("mul.Tensor mul.Tensor")
def flushes_subnormals(steps: list[Step], place: int, results: Results) -> Any:
    made = right(steps[place], results)
    if not isinstance(made, torch.Tensor) or made.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return made
    return torch.where(made.abs() < torch.finfo(made.dtype).smallest_normal, 0.0, made).to(made.dtype)


@control("add.Tensor mul.Tensor")
def half_is_kept_in_single(steps: list[Step], place: int, results: Results) -> Any:
    return fused_in_double("aten.add.Tensor", "aten.mul.Tensor")(steps, place, results)


@whole("neg.default copy_.default", CONTROLS)
def functional_writes(steps: list[Step]) -> Results:
    """Writes are collected, and done as the values they give."""
    results: Results = []
    for step in steps:
        if step.op == "aten.copy_.default":
            target, source = fill(step.args[:2], results)
            made = torch.ops.aten.copy.default(target.clone(), source)
            results.append(target.copy_(made))
            continue
        results.append(right(step, results))
    return results


@whole("mul.Tensor relu.default", CONTROLS)
def only_what_leaves(steps: list[Step]) -> Results:
    """Values that stay inside are given back as nothing."""
    results: Results = []
    for step in steps:
        results.append(right(step, results))
    inner = {place for place in range(len(steps)) if users(steps, place)}
    return [None if place in inner else result for place, result in enumerate(results)]
