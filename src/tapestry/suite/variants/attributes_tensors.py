"""Optional tensors supplied and dropped, and other lists of index tensors. Not here: arguments without tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tapestry.suite.variants.attributes_binding import Parameter, changed, given, main_tensor, parameters
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.shape_data import generator, resized
from tapestry.suite.variants.shape_trial import accepts

#: Shapes tried for a tensor that a call leaves out.
_MOST_SHAPES = 24


def tensor_values(call: OpCall, row: Parameter, value: object) -> Iterator[tuple[str, object]]:
    """An optional tensor left out where it is given, and given where it is left out: labels and values."""
    if not row.optional or row.kind != "Tensor":
        return
    if value is not None:
        yield "None", None
        if isinstance(value, torch.Tensor) and "mask" in row.name:
            yield from _masks(row.name, value)
        return
    found = _supplied(call, row.name)
    if found is not None:
        yield "given", found
        if "mask" in row.name:
            yield from _masks(row.name, found)


def index_lists(call: OpCall, row: Parameter, value: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Index lists by where they index: one dim, a later one, two beside each other or apart, by bool, from the end.

    Yields the changes to make: an index list, and values to be written that fit it where the operator writes.
    """
    tensor = main_tensor(call)
    if row.kind != "List[Optional[Tensor]]" or tensor is None or not tensor.dim() or not tensor.numel():
        return
    written = given(call).get("values")
    for label, indices in _indices(tensor):
        changes: dict[str, object] = {row.name: indices}
        if isinstance(written, torch.Tensor) and not accepts(changed(call, changes)):
            picked = torch.ops.aten.index.Tensor(tensor, indices)
            changes["values"] = resized(written, picked.shape, label)
        yield label, changes
    if written is None and tensor.dim() < 4 and "self" in given(call):
        # apart from each other and from the first dim: what they pick stands in front
        wide = resized(tensor, [3, 4, 2, 5], "four dims")
        indices = [None, torch.tensor([0, 3, 1]), None, torch.tensor([4, 0, 2])]
        yield "[None, i, None, j] of 4 dims", {"self": wide, row.name: indices}


def _indices(tensor: torch.Tensor) -> Iterator[tuple[str, list[torch.Tensor | None]]]:
    source = generator("index lists")
    shape = list(tensor.shape)

    def at(dim: int, *sizes: int) -> torch.Tensor:
        return (
            torch.randperm(max(shape[dim], 64), generator=source)[: max(_count(sizes), 1)].reshape(sizes) % shape[dim]
        )

    yield "[i from the end]", [at(0, 3) - shape[0]]
    yield "[2-d i]", [at(0, 2, 3)]
    yield "[0-d i]", [at(0)]
    yield "[bool]", [torch.arange(shape[0]) % 3 != 1]
    yield "[empty i]", [torch.zeros(0, dtype=torch.int64)]
    if tensor.dim() >= 2:
        yield "[None, i]", [None, at(1, 3)]
        yield "[i, j]", [at(0, 3), at(1, 3)]
        yield "[i, j] broadcast", [at(0, 2, 1), at(1, 3)]
        yield "[bool of 2 dims]", [torch.arange(shape[0] * shape[1]).reshape(shape[:2]) % 3 != 1]
        yield "[None, bool]", [None, torch.arange(shape[1]) % 3 != 1]
    if tensor.dim() >= 3:
        yield "[i, None, j]", [at(0, 2), None, at(2, 2)]
        yield "[None, i, j]", [None, at(1, 2), at(2, 2)]
        yield "[None, None, i]", [None, None, at(2, 3)]


def _count(sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _supplied(call: OpCall, name: str) -> torch.Tensor | None:
    """A tensor for an argument that is left out, the first that eager takes."""
    for shape in _shapes(call, name):
        for tensor in _drawn(call, name, shape):
            try:
                tried = changed(call, {name: tensor})
            except ValueError:
                return None
            if accepts(tried):
                return tensor
    return None


def _shapes(call: OpCall, name: str) -> list[tuple[int, ...]]:
    """Shapes that could fit: scores of queries against keys, of another optional tensor, of one dim, of the data."""
    tensors = call.tensors
    found: list[tuple[int, ...]] = []
    if "mask" in name and len(tensors) >= 2 and min(tensor.dim() for tensor in tensors[:2]) >= 2:
        found.append((tensors[0].shape[-2], tensors[1].shape[-2]))
    if name in ("min", "max") and tensors:
        found += [tuple(tensors[0].shape), tuple(tensors[0].shape[-1:])]
    for row in parameters(call.target):
        beside = given(call).get(row.name)
        if row.optional and isinstance(beside, torch.Tensor):
            found.append(tuple(beside.shape))
        if row.name == "normalized_shape" and isinstance(beside, list | tuple):
            found.append(tuple(beside))  # pyright: ignore
    sizes = [size for tensor in reversed(tensors) for size in (*tensor.shape[:2], *tensor.shape[-1:])]
    found += [(size,) for size in sizes]
    found += [tuple(tensor.shape) for tensor in tensors]
    found.append(())
    return list(dict.fromkeys(found))[:_MOST_SHAPES]


def _drawn(call: OpCall, name: str, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """A tensor as its name asks: around 1 for weights and variances, below the data for a lower bound, or indices."""
    tensor = main_tensor(call)
    dtype = tensor.dtype if tensor is not None and tensor.is_floating_point() else torch.float32
    noise = torch.randn(shape, generator=generator(f"{name} {shape}"))
    if "var" in name or name == "std":
        noise = noise.abs() + 0.5
    elif "weight" in name:
        noise = 1 + 0.5 * noise
    elif name in ("min", "max"):
        noise = 0.3 * noise + (0.5 if name == "max" else -0.5)
    yield noise.to(dtype)
    yield (10 * noise).to(torch.int64)


def _masks(name: str, mask: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A mask as bool and as numbers added, with no row wholly masked; the first half of the keys masked in all rows."""
    shape = mask.shape
    keep = torch.rand(tuple(shape), generator=generator(f"{name} mask")) < 0.6
    if mask.dim():
        keep[..., 0] = True
    dtype = mask.dtype if mask.is_floating_point() else torch.float32
    if mask.dtype != torch.bool:
        yield "bool", keep
    yield "added", 2 * torch.randn(tuple(shape), generator=generator(f"{name} added")).to(dtype)
    yield "-inf added", torch.zeros(tuple(shape), dtype=dtype).masked_fill(~keep, float("-inf"))
    yield "of all", torch.zeros(tuple(shape), dtype=dtype)
    if mask.dim() and shape[-1] > 1:
        later = (torch.arange(shape[-1]) >= shape[-1] // 2).expand(tuple(shape)).contiguous()
        yield "second half", later
        yield "second half, -inf added", torch.zeros(tuple(shape), dtype=dtype).masked_fill(~later, float("-inf"))
