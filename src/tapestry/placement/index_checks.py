"""Index operands of nodes that run on a device: they are checked on the host, since kernels do not raise.

Not here: when the check happens (executable).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from tapestry.program import traits
from tapestry.program.graph import Call, Ref, TensorSpec, operands, refs_in
from tapestry.program.interpret import resolve
from tapestry.program.program import Program

#: Operators that index ``self`` along ``dim``; eager takes no negative index, but for index_fill.
_ALONG_DIM = frozenset(
    {
        "gather", "index_select", "scatter", "scatter_add", "scatter_reduce",
        "index_add", "index_copy", "index_fill", "index_reduce",
    }
)  # fmt: skip
#: Operator → the argument that is indexed along its first dimension, and the one with the indices.
_ROWS = {"embedding": ("weight", "indices"), "_embedding_bag": ("weight", "indices")}
_LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d", "nll_loss_nd"})
_UNPOOLS = frozenset({"max_unpool2d", "max_unpool3d"})


_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod", "divide", "true_divide"})


@dataclass(frozen=True)
class IndexCheck:
    """The integers in ``index`` must lie in [low, high) or be ``ignored``, or the call raises.

    A divisor is checked the same way: ``low`` and ``high`` are those of its dtype, and ``refused`` is 0.
    """

    call: Call
    index: Ref
    low: int
    high: int
    ignored: int | None = None
    refused: int | None = None

    def run(self, values: torch.Tensor, program: Program) -> None:
        """Raise what eager raises for this call when an index is out of range."""
        if values.numel() == 0:
            return
        looked_at = values if self.ignored is None else values[values != self.ignored]
        if looked_at.numel() == 0:
            return
        low, high = (int(entry.item()) for entry in torch.aminmax(looked_at))
        if low >= self.low and high < self.high and not self._has_refused(values):
            return
        _raise_as_eager(self, values, program)
        where = program.by_id[self.call.name].source
        raise IndexError(
            f"{self.call.name} at {where}: expected indices in [{self.low}, {self.high}), got {low}..{high}"
        )

    def _has_refused(self, values: torch.Tensor) -> bool:
        return self.refused is not None and bool((values == self.refused).any())


def _raise_as_eager(check: IndexCheck, values: torch.Tensor, program: Program) -> None:
    """Run the call itself on zeros with the wrong index: eager then raises its own error."""
    stand_ins: dict[Ref, object] = {}
    for ref in operands(check.call):
        spec = program.spec(ref)
        stand_ins[ref] = torch.zeros(spec.shape, dtype=spec.dtype)
    stand_ins[check.index] = values.reshape(program.spec(check.index).shape)
    args = [resolve(value, stand_ins) for value in check.call.args]
    kwargs = {name: resolve(value, stand_ins) for name, value in check.call.kwargs}
    with torch.no_grad():
        check.call.target(*args, **kwargs)


def index_checks(program: Program, call: Call) -> tuple[IndexCheck, ...]:
    """The checks that a call needs; none for constant indices, which eager has accepted at capture."""
    found = (*_checks(program, call), *_divisor(program, call))
    return tuple(check for check in found if not program.is_constant(check.index))


def _checks(program: Program, call: Call) -> Iterator[IndexCheck]:
    base = traits.base_name(call.target)
    if base in _ROWS:
        table, index = _ROWS[base]
        yield from _each(call, index, 0, _spec(program, call, table).shape[0])
    elif base in _ALONG_DIM:
        shape = _spec(program, call, "self").shape
        dim = traits.argument(call, "dim")
        size = shape[dim] if isinstance(dim, int) and shape else 1
        yield from _each(call, "index", -size if base == "index_fill" else 0, size)
    elif base in {"take", "put"}:
        count = _spec(program, call, "self").numel
        yield from _each(call, "index", -count, count)
    elif base in _LOSSES:
        classes = _spec(program, call, "self").shape[-1 if len(_spec(program, call, "self").shape) == 1 else 1]
        ignored = traits.argument(call, "ignore_index")
        yield from _each(call, "target", 0, classes, ignored if isinstance(ignored, int) else None)
    elif base in _UNPOOLS:
        sizes = traits.argument(call, "output_size")
        if isinstance(sizes, tuple):
            yield from _each(call, "indices", 0, prod(size for size in sizes if isinstance(size, int)))
    elif base == "one_hot":
        classes = traits.argument(call, "num_classes")
        if isinstance(classes, int) and classes > 0:
            yield from _each(call, "self", 0, classes)
    elif base in {"index", "index_put", "_unsafe_index", "_unsafe_index_put"}:
        yield from _indexing(program, call)


def _divisor(program: Program, call: Call) -> Iterator[IndexCheck]:
    """Eager raises for an integer divided by 0; kernels do not."""
    if traits.base_name(call.target) not in _DIVISIONS:
        return
    integers = all(spec is None or not spec.dtype.is_floating_point for spec in call.outputs)
    divisor = traits.argument(call, "other")
    if integers and isinstance(divisor, Ref) and program.spec(divisor).dtype != torch.bool:
        limits = torch.iinfo(program.spec(divisor).dtype)
        yield IndexCheck(call, divisor, limits.min, limits.max + 1, refused=0)


def _indexing(program: Program, call: Call) -> Iterator[IndexCheck]:
    shape = _spec(program, call, "self").shape
    indices = traits.argument(call, "indices")
    if not isinstance(indices, tuple):
        return
    dim = 0
    for entry in indices:
        if isinstance(entry, Ref):
            spec = program.spec(entry)
            if spec.dtype in (torch.bool, torch.uint8):
                dim += len(spec.shape)
                continue
            yield IndexCheck(call, entry, -shape[dim], shape[dim])
        dim += 1


def _each(call: Call, name: str, low: int, high: int, ignored: int | None = None) -> Iterator[IndexCheck]:
    for ref in refs_in(traits.argument(call, name)):
        yield IndexCheck(call, ref, low, high, ignored)


def _spec(program: Program, call: Call, name: str) -> TensorSpec:
    found = traits.argument(call, name)
    if not isinstance(found, Ref):
        raise KeyError(name)
    return program.spec(found)
