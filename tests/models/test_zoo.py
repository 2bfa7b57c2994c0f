"""The zoo: the same models every time, activations near one, every name documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.models.load import differs_in_training, load_model
from tapestry.models.zoo.registry import list_zoo

ROOT = Path(__file__).parents[2]
NAMES = [entry.name for entry in list_zoo()]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    if name_needs_transformers(request.param):
        pytest.importorskip("transformers")
    return f"zoo:{request.param}"


def name_needs_transformers(name: str) -> bool:
    return next(entry.place for entry in list_zoo() if entry.name == name).startswith("transformer:")


def run(name: str) -> list[list[Any]]:
    loaded = load_model(name)
    with torch.no_grad():
        return [
            pytree.tree_leaves(loaded.module(*call.args, **call.kwargs))
            for entry in loaded.inputs
            for call in entry.calls
        ]


def test_twice_is_the_same_and_the_callers_generator_stays(name: str) -> None:
    torch.manual_seed(3)
    one = run(name)
    drawn = torch.rand(3)
    torch.manual_seed(4)
    other = run(name)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    for left, right in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_each_call_gives_another_result_of_the_same_shapes(name: str) -> None:
    first, second, *_ = run(name)
    assert [leaf.shape for leaf in first] == [leaf.shape for leaf in second]
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_activations_stay_near_one(name: str) -> None:
    loaded = load_model(name)
    assert isinstance(loaded.module, nn.Module)
    sizes: dict[str, float] = {}

    def note(label: str) -> Any:
        def hook(module: nn.Module, given: object, output: object) -> None:
            for leaf in pytree.tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > 8:
                    sizes[label] = float(leaf.square().mean().sqrt())

        return hook

    for label, part in loaded.module.named_modules():
        part.register_forward_hook(note(label))
    call = loaded.inputs[0].calls[0]
    loaded.module(*call.args, **call.kwargs)
    assert sizes
    assert {label: size for label, size in sizes.items() if not 0.02 < size < 50} == {}


def test_in_inference_mode(name: str) -> None:
    loaded = load_model(name)
    assert not differs_in_training(loaded)
    assert isinstance(loaded.module, nn.Module)
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())


def test_batch_norms_are_calibrated() -> None:
    for name in ("zoo:convnet", "zoo:resnet"):
        module = load_model(name).module
        assert isinstance(module, nn.Module)
        norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
        assert norms
        for norm in norms:
            assert norm.running_mean is not None
            assert not torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"the zoo has no 'giraffe'; it has bert, convnet"):
        load_model("zoo:giraffe")


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "tapestry.models.zoo.transformer", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[hf\]'"):
        load_model("zoo:vit")


def test_the_documentation_lists_the_zoo() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for entry in list_zoo():
        assert f"| `zoo:{entry.name}` | {entry.summary} |" in text
