"""The recorder sees what torch.export puts into its graph, and the shipped index is what the table calls."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from tapestry.suite.schema import index, opinfo
from tapestry.suite.schema.recording import recording


class Calls(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.linear(x, weight).reshape(2, -1).softmax(-1)
        image = F.conv2d(image, image[:, :, :3, :3], padding="same")
        heads = x.view(1, 2, 4, 8)
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        parts = torch.chunk(x, 2, -1)
        return y, image, attended, parts[1].to(torch.float16), F.rms_norm(x, [8])[..., 1:3], x.mT @ x


def test_recorded_calls_are_those_of_the_exported_graph() -> None:
    inputs = (torch.randn(8, 8), torch.randn(4, 8), torch.randn(1, 3, 6, 6))
    graph = torch.export.export(Calls(), inputs, strict=False).graph
    exported = [str(node.target) for node in graph.nodes if isinstance(node.target, OpOverload)]
    recorded: list[str] = []
    with recording(lambda target, *_: recorded.append(str(target))):
        Calls()(*inputs)
    assert recorded == [name for name in exported if name != "aten._assert_tensor_metadata.default"]


def test_below_is_what_composites_are_made_of() -> None:
    above: list[str] = []
    below: list[str] = []
    image, weight = torch.randn(1, 3, 6, 6), torch.randn(2, 3, 3, 3)
    with recording(lambda target, *_: above.append(str(target)), lambda target, *_: below.append(str(target))):
        F.conv2d(image, weight).relu()
    assert above == ["aten.conv2d.default", "aten.relu.default"]
    assert below == ["aten.convolution.default"]


def test_importing_the_table_leaves_the_process_as_it_was() -> None:
    before = dict(os.environ)
    opinfo.entries()
    assert dict(os.environ) == before
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark  # refused after the table's own set-up


@pytest.mark.parametrize("entry", ["add", "nn.functional.conv2d", "softmax.with_dtype", "index_put", "clamp"])
def test_the_shipped_index_is_what_the_table_calls(entry: str) -> None:
    shipped = index.load()
    for target, place in index.record(entry, opinfo.entries()[entry]).items():
        assert target in shipped
        assert place in shipped[target] or len(shipped[target]) == index.PLACES


def test_an_index_is_read_back_as_it_was_written(tmp_path: object) -> None:
    place = index.Place("add", "function", False, 0, "float32")
    made = index.Index(index.VERSION, "2.13.0", {"aten.add.Tensor": (place,)})
    path = index.Path(str(tmp_path)) / "folder" / "index.json"
    index.write(made, path)
    assert index.read(path) == made
    path.write_text("{")
    assert index.read(path) is None
    assert index.read(path.with_name("none.json")) is None
