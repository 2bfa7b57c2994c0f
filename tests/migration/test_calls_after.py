"""What a moved model does with calls that differ from the captured one in what is shared, divided or counted."""

from __future__ import annotations

import pytest
import torch

import tapestry
from tapestry.errors import CaptureError, InputError


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n.add_(1)
        return x * self.n


def test_the_first_call_starts_from_the_captured_state() -> None:
    x = torch.ones(3)
    with tapestry.migrate(Counter().eval(), to="cpu", inputs=[(x,)]) as moved:
        for count in (1, 2, 3):
            assert torch.equal(moved.executable(x), torch.full((3,), float(count)))  # type: ignore[arg-type]


def test_tensors_that_were_one_at_capture_must_be_equal() -> None:
    def same_or_not(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 2 if a is b else a + b

    x, other = torch.ones(3), torch.zeros(3)
    with tapestry.migrate(same_or_not, to="cpu", inputs=[(x, x)]) as moved:
        assert torch.equal(moved.executable(other, other), other * 2)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="were one tensor at capture"):
            moved.executable(x, other)


def test_attention_captured_on_one_tensor_is_not_called_on_three() -> None:
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, k = torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    with tapestry.migrate(attention, to="cpu", inputs=[(x, x, x)]) as moved:
        torch.testing.assert_close(moved.executable(k, k, k), attention(k, k, k))
        with pytest.raises(InputError, match="one tensor at capture"):
            moved.executable(x, k, k)


def test_a_written_input_must_not_be_shared() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    with tapestry.migrate(write, to="cpu", inputs=[(torch.zeros(3), torch.zeros(3))]) as moved:
        both = torch.zeros(3)
        with pytest.raises(InputError, match="share memory"):
            moved.executable(both, both)


@pytest.mark.parametrize(
    "to",
    [
        "cpu",
        pytest.param("opencl:0", marks=pytest.mark.opencl),
        pytest.param("webgpu:0", marks=[pytest.mark.webgpu, pytest.mark.thorough]),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda a, b: a // b, id="floor_divide"),
        pytest.param(lambda a, b: a % b, id="remainder", marks=pytest.mark.thorough),
    ],
)
def test_an_integer_divided_by_zero_raises_as_in_eager(function: object, to: str) -> None:
    a, b = torch.tensor([7, -7]), torch.tensor([2, 3])
    with tapestry.migrate(function, to=to, inputs=[(a, b)]) as moved:  # type: ignore[arg-type]
        assert torch.equal(moved.executable(a, b), function(a, b))  # type: ignore[operator, arg-type]
        with pytest.raises(RuntimeError, match=r"(?i)zero"):
            moved.executable(a, torch.tensor([0, 3]))


def test_wrong_arguments_are_named() -> None:
    with tapestry.migrate(lambda x, y: x + y, to="cpu", inputs=[(torch.ones(2), torch.ones(2))]) as moved:
        with pytest.raises(InputError, match="expected 2 positional arguments, got 1"):
            moved.executable(torch.ones(2))
        with pytest.raises(InputError, match="argument 1 is nested in another way"):
            moved.executable(torch.ones(2), [torch.ones(2)])


def test_a_model_that_raises_on_its_own_inputs_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"(?s)raises on these inputs.*IndexError"):
        tapestry.capture(torch.nn.Embedding(4, 3), (torch.tensor([9]),))


def test_a_scripted_module_is_refused_in_words() -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        scripted = torch.jit.script(torch.nn.Linear(4, 4))
    with pytest.raises(CaptureError, match="TorchScript module"):
        tapestry.capture(scripted, (torch.ones(1, 4),))


def test_a_branch_on_data_is_told_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError, match=r"test_calls_after\.py") as raised:
        tapestry.capture(lambda x: x + 1 if x.sum() > 0 else x, (torch.ones(2),))
    assert len(str(raised.value).splitlines()) <= 6
    assert capsys.readouterr().err == ""
