"""Attention as its kernels see it: where the heads of each operand lie, the mask, and the size of the loops.

Not here: the kernels (attention_alone, attention_group) and the patterns (attention).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tapestry.backends.kernels.families.text import EXP, number, stored
from tapestry.backends.kernels.webgpu.grid import SPECIAL


@dataclass(frozen=True)
class Heads:
    """Where an operand's matrices lie in its buffer: ``sizes`` and ``strides`` of its batch, ``step`` between rows.

    All in elements; values of a row are neighbours. A transposed view of a buffer is one with other strides.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    step: int

    @staticmethod
    def of(shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> Heads:
        """A contiguous buffer of ``shape``, whose dimensions are then taken in ``order``, the last one staying."""
        strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        taken = order or tuple(range(len(shape)))
        return Heads(
            tuple(shape[dim] for dim in taken[:-2]), tuple(strides[dim] for dim in taken[:-2]), strides[taken[-2]]
        )

    def place(self, batch: tuple[int, ...], index: str = "batch", shared: int = 1) -> str:
        """Where matrix ``index`` of ``batch`` begins. ``shared``: so many neighbouring heads read the same one."""
        padded = (1,) * (len(batch) - len(self.sizes)) + self.sizes
        strides = (0,) * (len(batch) - len(self.sizes)) + self.strides
        terms: list[str] = []
        for dim, (size, stride) in enumerate(zip(padded, strides, strict=True)):
            part = shared if dim == len(batch) - 1 else 1
            if size == 1 or not stride:
                continue
            below = prod(batch[dim + 1 :])
            head = f"{index} / {below}u % {batch[dim]}u" + (f" / {part}u" if part > 1 else "")
            terms.append(f"({head}) * {stride}u")
        return " + ".join(terms) or "0u"

    def in_vectors(self) -> bool:
        """Whether all rows begin at multiples of four elements."""
        return self.step % 4 == 0 and all(stride % 4 == 0 for stride in self.strides)


@dataclass(frozen=True)
class Mask:
    """A mask of [batch…, rows, keys], any of which may be 1. ``keeps``: true keeps a score; else it is added."""

    shape: tuple[int, ...]
    keeps: bool


@dataclass(frozen=True)
class Attention:
    """``softmax(q @ k.T * scale + mask) @ v`` for each matrix of a batch. ``shared``: query heads to one of k and v."""

    batch: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    scale: float
    mask: Mask | None
    causal: bool
    shared: int
    dtype: str

    @property
    def count(self) -> int:
        """Matrices in the batch."""
        return prod(self.batch)

    @property
    def reads(self) -> tuple[str, ...]:
        """The captures that are bound, before ``out``."""
        return ("q", "k", "v", "mask") if self.mask is not None else ("q", "k", "v")

    def vectors(self) -> tuple[bool, bool]:
        """Whether q and k, and v, may be read in vectors of four."""
        by_depth = self.depth % 4 == 0 and self.q.in_vectors() and self.k.in_vectors()
        return by_depth, self.width % 4 == 0 and self.v.in_vectors()

    def head(self) -> str:
        """Buffers, where matrices begin (``q_matrix`` …), and ``score``, which masks and scales a dot product."""
        by_depth, by_width = self.vectors()
        kinds = {"q": by_depth, "k": by_depth, "v": by_width}
        lines = [
            f"@group(0) @binding({place}) var<storage, read> {name} : array<{'vec4f' if vectors else 'f32'}>;"
            for place, (name, vectors) in enumerate(kinds.items())
        ]
        count = len(lines)
        if self.mask is not None:
            kind = "u32" if self.mask.keeps else "f32"
            lines.append(f"@group(0) @binding({count}) var<storage, read> mask : array<{kind}>;")
            count += 1
        lines.append(f"@group(0) @binding({count}) var<storage, read_write> out : array<f32>;")
        lines += [SPECIAL, EXP, stored(self.dtype)]
        for name, heads, shared in (
            ("q", self.q, 1), ("k", self.k, self.shared), ("v", self.v, self.shared), ("out", self.out, 1)
        ):  # fmt: skip
            lines.append(f"fn {name}_matrix(batch : u32) -> u32 {{ return {heads.place(self.batch, shared=shared)}; }}")
        lines += [
            "fn larger(a : f32, b : f32) -> f32 { if (a > b || is_nan(a)) { return a; } return b; }",
            self._mask_row(),
            self._score(),
        ]
        return "\n".join(lines) + "\n"

    def _mask_row(self) -> str:
        if self.mask is None:
            return "fn mask_row(batch : u32, row : u32) -> u32 { return 0u; }"
        shape = (1,) * (2 + len(self.batch) - len(self.mask.shape)) + self.mask.shape
        heads = Heads.of(shape)
        row = f" + row * {heads.step}u" if shape[-2] > 1 else ""
        return f"fn mask_row(batch : u32, row : u32) -> u32 {{ return {heads.place(self.batch)}{row}; }}"

    def _score(self) -> str:
        lines = [f"if (key >= {self.keys}u) {{ return -infinity(); }}"]
        if self.causal:
            lines.append("if (key > row) { return -infinity(); }")
        scaled = f"dots * {number(self.scale)}"
        if self.mask is None:
            lines.append(f"return {scaled};")
        else:
            value = f"mask[mask_at{' + key' if self.mask.shape[-1] > 1 else ''}]"
            if self.mask.keeps:
                lines += [f"if ({value} == 0u) {{ return -infinity(); }}", f"return {scaled};"]
            else:
                lines.append(f"return {scaled} + {value};")
        return f"fn score(dots : f32, row : u32, key : u32, mask_at : u32) -> f32 {{ {' '.join(lines)} }}"
