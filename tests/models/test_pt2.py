""".pt2 files that torch.export.save wrote: the same results, the same inputs, whatever their dtypes and structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

from support.pt2_files import rewrite, save_pt2
from tapestry.errors import UsageError
from tapestry.models.load import load_model
from tapestry.models.pt2.load import load_pt2
from tapestry.program.capture import capture


class Mixed(nn.Module):
    """Batch norm, a buffer that is not saved, a constant, a literal, keyword and nested arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("hidden", torch.arange(3.0), persistent=False)
        self.constant = torch.full((3,), 0.5)

    def forward(self, x: torch.Tensor, pair: Any, scale: float = 1.0, *, y: torch.Tensor) -> Any:
        out = self.norm(self.linear(x)) + self.hidden + self.constant + torch.tensor([1.0, 2.0, 3.0])
        return {"out": out * scale + pair[0] + pair[1]["z"], "n": y + 1, "first": x}


def mixed(path: Path) -> tuple[Path, nn.Module, tuple[Any, ...], dict[str, Any]]:
    module = Mixed().eval()
    args = (torch.randn(2, 4), (torch.randn(2, 3), {"z": torch.randn(3)}), 0.25)
    kwargs = {"y": torch.arange(4)}
    return save_pt2(path / "mixed.pt2", module, args, kwargs), module, args, kwargs


def equal(one: object, other: object) -> bool:
    left, left_tree = pytree.tree_flatten(one)
    right, right_tree = pytree.tree_flatten(other)
    same = (
        torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )
    return left_tree == right_tree and all(same)


def test_results_and_inputs_are_those_that_were_saved(tmp_path: Path) -> None:
    path, module, args, kwargs = mixed(tmp_path)
    loaded = load_model(str(path))
    (call,) = loaded.inputs[0].calls
    assert loaded.name == str(path)
    assert equal(call.args, args)
    assert equal(dict(call.kwargs), kwargs)
    assert equal(loaded.module(*call.args, **call.kwargs), module(*args, **kwargs))


def test_it_is_captured_with_the_lines_of_the_users_file(tmp_path: Path) -> None:
    path, module, args, kwargs = mixed(tmp_path)
    loaded = load_pt2(path)
    (call,) = loaded.inputs[0].calls
    program = capture(loaded.module, call.args, call.kwargs, name="mixed")
    (linear,) = [node for node in program.nodes if node.call.target is torch.ops.aten.linear.default]
    assert linear.source.file == __file__
    assert equal(loaded.module(*call.args, **call.kwargs), module(*args, **kwargs))


def test_trusting_a_harmless_file_changes_nothing(tmp_path: Path) -> None:
    path, module, args, kwargs = mixed(tmp_path)
    loaded = load_pt2(path, trust_pickle=True)
    (call,) = loaded.inputs[0].calls
    assert equal(loaded.module(*call.args, **call.kwargs), module(*args, **kwargs))


def test_weights_that_share_storage_and_strides(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 5)
            self.head = nn.Linear(5, 7, bias=False)
            self.head.weight = self.embedding.weight
            self.turned = nn.Parameter(torch.randn(6, 5).t())
            self.register_buffer("none", torch.zeros(0, 3))

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.embedding(ids)
            return self.head(hidden), torch.cat([(hidden @ self.turned)[:, :3], self.none])

    module = Tied().eval()
    ids = torch.tensor([0, 6, 3])
    loaded = load_pt2(save_pt2(tmp_path / "tied.pt2", module, (ids,)))
    assert equal(loaded.module(ids), module(ids))


def test_sizes_that_were_left_open(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)).eval()
    x = torch.randn(5, 4)
    batch = torch.export.Dim("batch", min=2, max=64)
    loaded = load_pt2(save_pt2(tmp_path / "open.pt2", module, (x,), dynamic_shapes=({0: batch},)))
    assert equal(loaded.module(x), module(x))
    assert len(capture(loaded.module, (x,), name="open").nodes) >= 2


def test_gradient_modes_inside_the_model(tmp_path: Path) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                fixed = x.sin()
            return self.linear(x) + fixed

    module = Frozen().eval()
    x = torch.randn(2, 4)
    loaded = load_pt2(save_pt2(tmp_path / "frozen.pt2", module, (x,)))
    assert equal(loaded.module(x), module(x))


def test_output_classes_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    module = transformers.BertModel(config).eval()
    kwargs = {"input_ids": torch.arange(5).unsqueeze(0)}
    loaded = load_pt2(save_pt2(tmp_path / "bert.pt2", module, (), kwargs))
    got, want = loaded.module(**kwargs), module(**kwargs)
    assert type(got) is type(want)
    assert torch.equal(got.pooler_output, want.pooler_output)


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip


class Pass(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(2, 5), max_size=3).map(tuple),
    layout=st.sampled_from(("plain", "turned", "sliced", "expanded")),
)
def test_sample_inputs_keep_dtype_shape_strides_and_bits(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...], layout: str
) -> None:
    x = (torch.randn(shape) * 3).to(dtype)
    if shape and layout == "turned":
        x = x.transpose(0, -1)
    elif shape and layout == "sliced":
        x = x[1:]
    elif layout == "expanded":
        x = x.unsqueeze(0).expand(3, *shape)
    loaded = load_pt2(save_pt2(tmp_path / "x.pt2", Pass(), (x,)))
    (got,) = loaded.inputs[0].calls[0].args
    assert isinstance(got, torch.Tensor)
    assert (got.dtype, got.shape, got.stride()) == (x.dtype, x.shape, x.stride())
    assert torch.equal(got, x)


def test_without_sample_inputs_it_says_how_to_give_them(tmp_path: Path) -> None:
    path, *_ = mixed(tmp_path)
    for missing in (None, b""):
        rewrite(path, {"data/sample_inputs/model.pt": missing})
        with pytest.raises(UsageError, match=r"holds no sample inputs.*FILE\.py:FACTORY"):
            load_pt2(path)


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))

    path = save_pt2(tmp_path / "choice.pt2", Choice(), (torch.randn(3),))
    with pytest.raises(UsageError, match=r"higher_order\.cond is control flow"):
        load_pt2(path)
