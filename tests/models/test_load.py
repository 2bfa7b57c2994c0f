"""Finding a model by name: which form it is, and what a wrong name is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tapestry.errors import UsageError
from tapestry.models.load import load_model


def write(path: Path, text: str) -> Path:
    path.write_text("import torch\n" + text)
    return path


def test_a_factory(tmp_path: Path) -> None:
    path = write(tmp_path / "m.py", "def make(): return torch.nn.Identity(), (torch.ones(2),), {}\n")
    loaded = load_model(f"{path}:make")
    (call,) = loaded.inputs[0].calls
    assert torch.equal(torch.as_tensor(call.args[0]), torch.ones(2))


def test_a_factory_of_consecutive_calls(tmp_path: Path) -> None:
    path = write(tmp_path / "m.py", "def make(): return torch.nn.Identity(), [(torch.ones(2),), (torch.zeros(2),)]\n")
    loaded = load_model(f"{path}:make")
    assert [len(entry.calls) for entry in loaded.inputs] == [2]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", r"demo:minilm, demo:smollm2, zoo:NAME, hf:DIR, FILE\.pt2 or FILE\.py:FACTORY, got 'nothing'"),
        ("", "expected a model as"),
        ("demo:other", "got 'demo:other'"),
        ("model.pt", r"got 'model\.pt'"),
        ("zoo:", "the zoo has no ''"),
        ("hf:/no/such/place", "got nothing"),
        ("/no/such/file.pt2", "got nothing"),
        ("/no/such/file.py:make", "got nothing"),
        ("/no/such/file.py", "without the name of a factory"),
    ],
)
def test_a_wrong_name_is_told_what_was_expected(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_model(name)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def make(): return 3", "got int"),
        ("def make(): return (1,)", "a tuple of 1"),
        ("def make(): return torch.nn.ReLU(), torch.ones(1)", "got Tensor"),
        ("def make(): return torch.nn.ReLU(), []", "got nothing"),
        ("def make(): return 3, ()", "got int"),
        ("def make(): return torch.nn.ReLU(), (), []", "got list"),
        ("def make(): raise ValueError('broken')", r"ValueError: broken \(line 2\)"),
        ("make = 5", "got int"),
        ("other = max", "it has other"),
        ("def make(:", "SyntaxError"),
    ],
)
def test_a_factory_that_does_not_deliver(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path / "m.py", text + "\n")
    with pytest.raises(UsageError, match=told):
        load_model(f"{path}:make")
