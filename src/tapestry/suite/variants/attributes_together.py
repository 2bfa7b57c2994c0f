"""Changes to several arguments at once, where faults sit in their interplay: by the names of the arguments alone.

Not here: changes to one argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from tapestry.suite.variants.attributes_binding import as_ints, given, main_tensor, parameters
from tapestry.suite.variants.call import OpCall
from tapestry.suite.variants.masks import added, kept_keys
from tapestry.suite.variants.shape_data import resized

Changes = Mapping[str, object]


def together(call: OpCall) -> Iterator[tuple[str, Changes]]:
    """Changes to several arguments of a call, with a label."""
    kinds = {row.name: row.kind for row in parameters(call.target)}
    for source in _SOURCES:
        for changes in source(call, kinds):
            yield ", ".join(f"{name}={_shown(value)}" for name, value in changes.items()), changes


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "x".join(map(str, value.shape)) or "0-d"
    return str(value).removeprefix("torch.")


def _reduced(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Keepdim beside dims counted from the end, dtypes beside dims."""
    rank = _rank(call)
    if "dim" not in kinds or not rank:
        return
    several = "List" in kinds["dim"]
    first: object = [-rank] if several else -rank
    if "keepdim" in kinds:
        yield {"dim": first, "keepdim": True}
        yield {"dim": first, "keepdim": False}
        if several and rank >= 2:
            yield {"dim": [-1, 0], "keepdim": True}
            yield {"dim": [], "keepdim": True}
    if kinds.get("dtype") == "ScalarType":
        for dtype in (torch.float64, torch.float16, torch.int64):
            yield {"dim": first, "dtype": dtype}
    if "correction" in kinds:
        yield {"dim": first, "correction": 0, "keepdim": True}


def _sliced(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Starts, ends and steps from the end, past the end, crossing."""
    if not {"start", "end"} <= kinds.keys():
        if {"start", "length"} <= kinds.keys():
            yield from ({"start": -2, "length": 1}, {"start": 1, "length": 2}, {"start": 1, "length": 0})
        return
    if "dim" not in kinds:
        tensorless = ((1, 10, 3), (10, 1, -3), (0, 1, 0.25), (5, 5, 1), (-3, 4, 2), (0.5, 4.0, 1.5), (2048, 2060, 1))
        for start, end, step in tensorless:
            yield {"start": start, "end": end, **({"step": step} if "step" in kinds else {})}
        return
    for dim in range(min(_rank(call), 2)):
        for start, end, step in ((-3, -1, 1), (1, 2**63 - 1, 2), (-1000, 1000, 3), (3, 2, 1), (1, -1, 2), (0, -2, 1)):
            yield {"dim": dim, "start": start, "end": end, **({"step": step} if "step" in kinds else {})}


def _windowed(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Strides with paddings, dilations and rounding up; what counts as inside beside a padding."""
    if "padding" not in kinds or "List" not in kinds["padding"] or "stride" not in kinds:
        return
    dims = len(as_ints(given(call).get("kernel_size")) or (0,) * max(_rank(call) - 2, 1))
    dims = dims if dims > 1 else max(next((d for d in (1, 2, 3) if f"{d}d" in str(call.target)), 2), 1)
    one, two, three = [1] * dims, [2] * dims, [3] * dims
    pooled = {"kernel_size": three, "stride": two, "padding": one} if "kernel_size" in kinds else {}
    if pooled:
        yield pooled
        if "ceil_mode" in kinds:
            yield {"kernel_size": two, "stride": two, "padding": [0] * dims, "ceil_mode": True}
            yield {"kernel_size": three, "stride": two, "ceil_mode": True}
        if "count_include_pad" in kinds:
            yield {**pooled, "count_include_pad": False}
            yield {**pooled, "ceil_mode": True, "count_include_pad": False}
            yield {**pooled, "ceil_mode": True, "count_include_pad": True}
        if "divisor_override" in kinds:
            yield {**pooled, "divisor_override": 5}
        if "dilation" in kinds:
            yield {**pooled, "dilation": two}
        yield {"kernel_size": [3, 2, 1][:dims], "stride": [1, 2, 3][:dims], "padding": [1, 0, 0][:dims]}
    elif "dilation" in kinds:
        yield {"stride": two, "padding": one, "dilation": two}
        yield {"stride": [2, 1, 3][:dims], "padding": [1, 2, 0][:dims], "dilation": [1, 2, 1][:dims]}
    if "output_padding" in kinds:
        yield {"stride": two, "output_padding": one}
        yield {"stride": three, "padding": one, "output_padding": [1, 2, 0][:dims]}


def _grouped(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Groups with a weight that fits them: two, and one channel each."""
    weight, data = given(call).get("weight"), main_tensor(call)
    if kinds.get("groups") != "int" or not isinstance(weight, torch.Tensor) or data is None or weight.dim() < 3:
        return
    spatial = weight.dim() - 2
    channels = data.shape[-spatial - 1]
    turned = "transpose" in str(call.target)
    bias = given(call).get("bias")
    for groups in dict.fromkeys((2, channels, 3, 4)):
        if not groups or channels % groups:
            continue
        sizes = (channels, 2) if turned else (2 * groups, channels // groups)
        fitted: dict[str, object] = {
            "groups": groups,
            "weight": resized(weight, (*sizes, *weight.shape[2:]), f"groups {groups}"),
        }
        if isinstance(bias, torch.Tensor):
            fitted["bias"] = resized(bias, (2 * groups,), f"groups {groups} bias")
        yield fitted


def _scaled(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """A factor beside an operand that broadcasts, two factors at once."""
    if "alpha" in kinds and "beta" in kinds and kinds["alpha"] == "number":
        yield {"alpha": 2, "beta": 3}
        yield {"alpha": -1, "beta": 0}
        yield {"alpha": 0.5, "beta": 1}
    other = given(call).get("other")
    if "alpha" in kinds and isinstance(other, torch.Tensor) and other.dim():
        yield {"other": resized(other, other.shape[-1:], "alpha"), "alpha": 2}
        yield {"other": resized(other, (), "alpha"), "alpha": -3}


def _padded(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Padding by each mode, of one dim and of two, with another value."""
    if kinds.get("pad") != "List[int]":
        return
    if kinds.get("mode") == "str":
        for mode in ("reflect", "replicate", "circular"):
            yield {"pad": [1, 2], "mode": mode}
            yield {"pad": [1, 0, 2, 1], "mode": mode}
    if "value" in kinds:
        yield {"pad": [2, 1], "value": 3.5}
        yield {"pad": [1, -1, 0, 2], "value": -1.5}


def _picked(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """The first few by either end along another dim, sorted or stable or not."""
    if "k" in kinds and "largest" in kinds:
        yield {"k": 2, "dim": 0, "largest": False}
        yield {"k": 1, "dim": -1, "largest": False}
        yield {"k": 3, "dim": -1, "largest": True}
    if "descending" in kinds:
        yield {"dim": 0, "descending": True}
        yield {"stable": True, "dim": -1, "descending": True} if "stable" in kinds else {"dim": -1, "descending": True}


def _bounded(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """One bound without the other, and bounds that cross."""
    if kinds.get("min") == "number" and kinds.get("max") == "number":
        yield from (
            {"min": 0.25, "max": None},
            {"min": None, "max": -0.25},
            {"min": 0.5, "max": -0.5},
            {"min": 0, "max": 6},
        )


def _heads(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Fewer heads of keys than of queries, longer and shorter keys under a causal mask."""
    values = given(call)
    query, key, value = values.get("query"), values.get("key"), values.get("value")
    if not (isinstance(query, torch.Tensor) and isinstance(key, torch.Tensor) and isinstance(value, torch.Tensor)):
        return
    if "attn_mask" in kinds and key.shape[-2] == value.shape[-2]:
        yield from _masked_blocks(query, key, value, {"is_causal": False} if values.get("is_causal") else {})
    if "enable_gqa" in kinds and query.dim() == 4 and key.shape == value.shape:
        for heads in (1, 2):
            shape = (query.shape[0], heads, *key.shape[2:])
            yield {
                "query": resized(query, (query.shape[0], 4, *query.shape[2:]), "heads"),
                "key": resized(key, shape, "heads"),
                "value": resized(value, shape, "heads"),
                "enable_gqa": True,
            }
    if "is_causal" in kinds and values.get("attn_mask") is None:
        for length in (query.shape[-2] + 3, max(query.shape[-2] - 3, 1)):
            longer = {
                "key": resized(key, (*key.shape[:-2], length, key.shape[-1]), "causal"),
                "value": resized(value, (*value.shape[:-2], length, value.shape[-1]), "causal"),
            }
            yield {**longer, "is_causal": True}
            yield {**longer, "is_causal": True, "scale": 0.5}


def _masked_blocks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, beside: Changes) -> Iterator[Changes]:
    """More keys than any kernel takes at once, whole blocks of them masked, another way in every row.

    By bool, by -inf and by the least number; the keys fill their last block, or are one short of it or one beyond.
    """
    for length, masked in ((288, None), (289, -torch.inf), (287, torch.finfo(query.dtype).min)):
        kept = torch.stack([row for _, row in kept_keys(length)])
        mask = kept
        if masked is not None:
            rows = [added(row, masked, seed) for seed, row in enumerate(kept)]
            mask = torch.stack(rows).to(query.dtype)
        yield {
            "query": resized(query, (*query.shape[:-2], len(kept), query.shape[-1]), "blocks"),
            "key": resized(key, (*key.shape[:-2], length, key.shape[-1]), "blocks"),
            "value": resized(value, (*value.shape[:-2], length, value.shape[-1]), "blocks"),
            "attn_mask": mask,
            **beside,
        }


def _moved(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Shifts of several dims at once, each pair of dims swapped, flattened from and to."""
    rank = _rank(call)
    if rank >= 2 and {"shifts", "dims"} <= kinds.keys():
        yield from (
            {"shifts": [1, 2], "dims": [0, 1]},
            {"shifts": [-1, 3], "dims": [-1, 0]},
            {"shifts": [2], "dims": []},
        )
        yield {"shifts": [3], "dims": [0]}
    pairs = [
        names for names in (("dim0", "dim1"), ("dim1", "dim2"), ("start_dim", "end_dim")) if {*names} <= kinds.keys()
    ]
    for one, two in pairs:
        for dims in ((0, 1), (-1, -2), (0, -1), (-1, 0), (1, 2), (0, 0)):
            yield {one: dims[0], two: dims[1]}
    if {"source", "destination"} <= kinds.keys() and rank >= 2:
        yield from ({"source": [0, 1], "destination": [1, 0]}, {"source": [0], "destination": [-1]})


def _listed(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """Parts and joins along another dim; a size of the result instead of a scale."""
    data, values = main_tensor(call), given(call)
    if data is None or not data.dim():
        return
    parts = values.get("tensors")
    if kinds.get("tensors") == "List[Tensor]" and "dim" in kinds and isinstance(parts, list | tuple):
        alike = [data, resized(data.flip(0), data.shape, "joined")]
        for dim in dict.fromkeys((-1, 0, -data.dim(), 1)):
            yield {"tensors": alike, "dim": dim}
    sizes = next((name for name in ("split_sizes", "split_size", "sections", "chunks") if name in kinds), None)
    if sizes is not None and "dim" in kinds:
        for dim in dict.fromkeys((0, -1, -data.dim())):
            yield {sizes: [1, data.shape[dim] - 1] if "List" in kinds[sizes] else 3, "dim": dim}
    if {"output_size", "scale_factors"} <= kinds.keys():
        spatial = data.dim() - 2
        for size in ([5, 7, 3], [1, 1, 1], [3, 11, 13]):
            yield {"output_size": size[:spatial], "scale_factors": None}
        if "align_corners" in kinds:
            yield {"output_size": [7, 5, 3][:spatial], "scale_factors": None, "align_corners": True}
            yield {"output_size": [1, 3, 1][:spatial], "scale_factors": None, "align_corners": True}


def _normalized(call: OpCall, kinds: dict[str, str]) -> Iterator[Changes]:
    """A norm over more dims or fewer, with weights of that shape."""
    data, values = main_tensor(call), given(call)
    now = as_ints(values.get("normalized_shape"))
    if data is None or now is None:
        return
    for count in range(1, data.dim() + 1):
        shape = list(data.shape[data.dim() - count :])
        if shape != now:
            fitted = {
                name: resized(value, shape, f"normalized {name}")
                for name, value in values.items()
                if name in ("weight", "bias") and isinstance(value, torch.Tensor)
            }
            yield {"normalized_shape": shape, **fitted}


def _rank(call: OpCall) -> int:
    tensor = main_tensor(call)
    return tensor.dim() if tensor is not None else 0


_SOURCES = (
    _reduced,
    _sliced,
    _windowed,
    _grouped,
    _scaled,
    _padded,
    _picked,
    _bounded,
    _heads,
    _moved,
    _listed,
    _normalized,
)
