"""Results that share memory in eager say so: with what, and where; strides that cannot say it give no alias."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.eager import assert_like_eager, same_bits
from tapestry.program.capture import capture
from tapestry.program.graph import Ref
from tapestry.program.interpret import run_program, start_values
from tapestry.program.program import Alias, Program

pytestmark = pytest.mark.slow

X = torch.arange(24.0).view(4, 6)


def described(program: Program) -> list[tuple[str | int, int] | None]:
    """Base and offset of each result's alias."""
    found: list[tuple[str | int, int] | None] = []
    for output in program.outputs:
        alias = output.alias
        if alias is None:
            found.append(None)
            continue
        found.append((alias.base if isinstance(alias.base, int) else alias.base.name, alias.offset))
    return found


def assert_aliases_hold_the_values(program: Program, args: tuple[object, ...]) -> None:
    """Every alias, rebuilt from its base with strides and offset, has the value of the result."""
    bound = program.bind(args, {})
    values = run_program(program, start_values(program, bound, {}))
    for output in program.outputs:
        if output.alias is None:
            continue
        base = _base(program, output.alias, values)
        rebuilt = base.as_strided(output.alias.shape, output.alias.stride, base.storage_offset() + output.alias.offset)
        assert isinstance(output.value, Ref)
        assert same_bits(rebuilt, values[output.value])


def _base(program: Program, alias: Alias, values: dict[Ref, object]) -> Tensor:
    if isinstance(alias.base, int):
        ref = program.outputs[alias.base].value
        assert isinstance(ref, Ref)
    else:
        written = {entry.name: entry.result for entry in program.state}
        ref = written.get(alias.base.name, alias.base)
    found = values[ref]
    assert isinstance(found, Tensor)
    return found.contiguous() if isinstance(alias.base, int) else found


def several_views(a: Tensor) -> tuple[Tensor, ...]:
    y = a * 2
    return y, y, y[1:], y.t(), y.view(-1)[3:7], a[0], a, a[:, ::2]


def test_results_that_view_results_and_inputs() -> None:
    program = assert_like_eager(several_views, [(X,)])
    name = program.inputs[0].name
    assert described(program) == [None, (0, 0), (0, 6), (0, 0), (0, 3), (name, 0), (name, 0), (name, 0)]
    assert program.outputs[3].alias == Alias(0, (6, 4), (1, 6), 0)
    assert_aliases_hold_the_values(program, (X,))


def test_a_view_of_a_sliced_input_counts_from_the_input() -> None:
    given = torch.arange(96.0).view(8, 12)[2::2, 1::2]
    program = capture(lambda a: (a, a[1], a[:, 2:]), (given,))
    name = program.inputs[0].name
    assert described(program) == [(name, 0), (name, 24), (name, 4)]
    assert_aliases_hold_the_values(program, (given,))


def test_arguments_that_share_memory_in_the_example_are_told_apart() -> None:
    """Another call may give two tensors: a result must not be a view of the wrong one."""
    program = capture(lambda a, b: (b, b[1], a), (X, X))
    first, second = (entry.name for entry in program.inputs)
    assert described(program) == [(second, 0), (second, 6), (first, 0)]
    rows = X[:2], X[1:3]
    program = capture(lambda a, b: (b, a), rows)
    assert described(program) == [(program.inputs[1].name, 0), (program.inputs[0].name, 0)]


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.register_buffer("written", torch.zeros(2, 3))
        self.register_buffer("fixed", torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.written.add_(x)
        return self.written, self.written[1], self.weight, self.weight[:, 1], self.fixed[1:], self.written + 0


def test_views_of_parameters_and_buffers() -> None:
    program = assert_like_eager(Holder(), [(torch.ones(2, 3),)] * 2)
    assert described(program) == [
        ("buffer:written", 0), ("buffer:written", 3), ("param:weight", 0), ("param:weight", 1), ("buffer:fixed", 1),
        None,
    ]  # fmt: skip
    assert_aliases_hold_the_values(program, (torch.ones(2, 3),))


class Assigns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.value = self.value + x
        return self.value


def test_an_assigned_buffer_is_not_shared_with_the_result() -> None:
    """The next call assigns another tensor, so that an earlier result stays what it was."""
    assert described(assert_like_eager(Assigns(), [(torch.ones(3),)] * 3)) == [None]


class Gappy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(4, 8)[:, ::2])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.value.add_(x)
        return self.value.sum(1), self.value


def test_a_written_buffer_with_gaps_is_no_base() -> None:
    """The state is kept without the gaps, so that the strides of eager would read past its end."""
    assert described(capture(Gappy(), (torch.ones(4),))) == [None, None]


def larger_second(a: Tensor) -> tuple[Tensor, ...]:
    y = a * 2
    return y[1:], y


def in_gaps(a: Tensor) -> tuple[Tensor, ...]:
    y = a * 2
    return y[:, ::2], y[:, 1::2]


BEYOND_STRIDES: dict[str, tuple[Callable[..., object], Tensor]] = {
    "another dtype": (lambda a: (a.view(torch.int32), a.view(torch.int16)), X),
    "real parts": (lambda a: (torch.view_as_real(a), a.real), torch.complex(X, X)),
    "conjugate": (lambda a: (a.conj(), a.conj().conj() * 1), torch.complex(X, X)),
    "the larger one second": (larger_second, X),
    "in the gaps of the first": (in_gaps, X),
}


@pytest.mark.parametrize("name", BEYOND_STRIDES)
def test_what_strides_cannot_say_has_no_alias_but_the_value(name: str) -> None:
    model, given = BEYOND_STRIDES[name]
    program = assert_like_eager(model, [(given,)])
    aliases = described(program)
    assert aliases[0] is None
    assert aliases[1] is None or aliases[1][0] == 0
    assert_aliases_hold_the_values(program, (given,))


def test_an_empty_result_has_no_alias() -> None:
    program = assert_like_eager(lambda a: (a, a[:, :0]), [(torch.zeros(0, 3),)])
    assert described(program) == [None, None]


def test_dropout_in_evaluation_returns_its_input() -> None:
    program = assert_like_eager(nn.Dropout(0.5).eval(), [(X,)])
    assert described(program) == [(program.inputs[0].name, 0)]
    assert program.nodes == ()
