"""Recurrent networks: LSTM, GRU and plain cells, alone and run over a sequence in layers and directions.

Errors of the hidden state are taken as independent where a recurrence mixes them (Bounded.mixed_by). A cell is several
operators, and what lies between them may be stored in the format of 16-bit operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tapestry.numerics.bounded import Arithmetic, Bounded
from tapestry.numerics.formulas.activations import sigmoid_of
from tapestry.numerics.formulas.call import Formula, FormulaCall

State = tuple[Bounded, ...]


@dataclass(frozen=True)
class _Weights:
    """One cell's parameters: input and hidden weights [gates * hidden, size], and their biases or None."""

    of_input: Bounded
    of_hidden: Bounded
    input_bias: Bounded | None
    hidden_bias: Bounded | None


Cell = Callable[[Bounded, State, _Weights], State]


def _projected(x: Bounded, weight: Bounded, bias: Bounded | None) -> Bounded:
    result = x.mixed_by(weight.apply(lambda tensor: tensor.t()))
    return (result if bias is None else result + bias).stored()


def _split(x: Bounded, parts: int) -> list[Bounded]:
    size = x.value.shape[-1] // parts
    return [x.apply(lambda tensor, s=start: tensor.narrow(-1, s * size, size)) for start in range(parts)]


def _gates(x: Bounded, hidden: Bounded, weights: _Weights) -> Bounded:
    first = _projected(x, weights.of_input, weights.input_bias)
    return (first + _projected(hidden, weights.of_hidden, weights.hidden_bias)).stored()


def _lstm_step(x: Bounded, state: State, weights: _Weights) -> State:
    return _lstm_state(_gates(x, state[0], weights), state[1])


def _lstm_state(gates: Bounded, cell: Bounded) -> State:
    entry, forget, candidate, output = _split(gates, 4)
    forgotten = (_gate(forget) * cell).stored()
    cell = (forgotten + (_gate(entry) * candidate.tanh().stored()).stored()).stored()
    return (_gate(output) * cell.tanh().stored()).stored(), cell


def _gate(x: Bounded) -> Bounded:
    return sigmoid_of(x).stored()


def _gru_step(x: Bounded, state: State, weights: _Weights) -> State:
    hidden = state[0]
    reset, update, candidate = _split(_projected(x, weights.of_input, weights.input_bias), 3)
    hidden_reset, hidden_update, mixed = _split(_projected(hidden, weights.of_hidden, weights.hidden_bias), 3)
    kept = (_gate((reset + hidden_reset).stored()) * mixed).stored()
    new = (candidate + kept).stored().tanh().stored()
    return ((_gate((update + hidden_update).stored()) * (hidden - new).stored()).stored() + new,)


def _tanh_step(x: Bounded, state: State, weights: _Weights) -> State:
    return (_gates(x, state[0], weights).tanh().stored(),)


def _relu_step(x: Bounded, state: State, weights: _Weights) -> State:
    return (_gates(x, state[0], weights).clamp(0.0, None),)


def _cell(step: Cell) -> Formula:
    def formula(call: FormulaCall) -> tuple[Bounded | None, ...]:
        given = call.bound["hx"]
        hx = cast(Sequence[Tensor], [given] if isinstance(given, Tensor) else given)
        biases = (call.optional("b_ih"), call.optional("b_hh"))
        return step(call.value("input"), _exact(hx, call.arithmetic), _Weights(
            call.value("w_ih"), call.value("w_hh"), *biases))  # fmt: skip

    return formula


def _exact(tensors: Sequence[Tensor], arithmetic: Arithmetic) -> State:
    return tuple(arithmetic.exact(tensor.to(torch.float64)) for tensor in tensors)


def _fused_lstm_cell(call: FormulaCall) -> tuple[Bounded | None, ...]:
    gates = call.value("input_gates") + call.value("hidden_gates")
    for bias in (call.optional("input_bias"), call.optional("hidden_bias")):
        gates = gates if bias is None else (gates + bias).stored()
    return (*_lstm_state(gates, call.value("cx")), None)


def _sequence(step: Cell) -> Formula:
    """Layers of a network over a sequence: (output, last hidden state, last cell state where there is one)."""

    def formula(call: FormulaCall) -> tuple[Bounded | None, ...] | None:
        if call.bound.get("input") is None or call.bound.get("batch_sizes") is not None:
            return None  # packed sequences
        x = call.value("input")
        if call.flag("batch_first"):
            x = x.apply(lambda tensor: tensor.transpose(0, 1))
        given = call.bound["hx"]
        starts = _exact([given] if isinstance(given, Tensor) else cast(Sequence[Tensor], given), call.arithmetic)
        weights = _layers(call)
        if weights is None:
            return None
        steps = list(_unstacked(x))
        ends: list[State] = []
        directions = 2 if call.flag("bidirectional") else 1
        for layer in range(int(call.number("num_layers", 1))):
            outputs: list[list[Bounded]] = []
            for direction in range(directions):
                place = layer * directions + direction
                state = tuple(start.apply(lambda tensor, p=place: tensor[p]) for start in starts)
                done, end = _run(step, steps[::-1] if direction else steps, state, weights[place])
                outputs.append(done[::-1] if direction else done)
                ends.append(end)
            steps = [_joined(list(each), -1) for each in zip(*outputs, strict=True)]
        output = _stacked(steps, 1 if call.flag("batch_first") else 0)
        return (output, *(_stacked([end[i] for end in ends], 0) for i in range(len(starts))))

    return formula


def _run(step: Cell, steps: Sequence[Bounded], state: State, weights: _Weights) -> tuple[list[Bounded], State]:
    outputs: list[Bounded] = []
    for x in steps:
        state = step(x, state, weights)
        outputs.append(state[0])
    return outputs, state


def _layers(call: FormulaCall) -> list[_Weights] | None:
    parameters = _exact(cast(Sequence[Tensor], call.bound["params"]), call.arithmetic)
    size = 4 if call.flag("has_biases") else 2
    if not parameters or len(parameters) % size:
        return None
    groups = [parameters[start : start + size] for start in range(0, len(parameters), size)]
    expected = int(call.number("num_layers", 1)) * (2 if call.flag("bidirectional") else 1)
    if len(groups) != expected:
        return None  # projections
    return [_Weights(group[0], group[1], *(group[2:] or (None, None))) for group in groups]


def _unstacked(x: Bounded) -> Sequence[Bounded]:
    return [x.apply(lambda tensor, i=i: tensor[i]) for i in range(x.value.shape[0])]


def _joined(parts: Sequence[Bounded], dim: int) -> Bounded:
    values = torch.cat([part.value for part in parts], dim)
    bounds = torch.cat([part.bound.expand(part.value.shape) for part in parts], dim)
    return Bounded(values, bounds, parts[0].arithmetic)


def _stacked(parts: Sequence[Bounded], dim: int) -> Bounded:
    return _joined([part.apply(lambda tensor: tensor.unsqueeze(dim)) for part in parts], dim)


FORMULAS: dict[str, Formula] = {
    "lstm": _sequence(_lstm_step),
    "gru": _sequence(_gru_step),
    "rnn_tanh": _sequence(_tanh_step),
    "rnn_relu": _sequence(_relu_step),
    "lstm_cell": _cell(_lstm_step),
    "gru_cell": _cell(_gru_step),
    "rnn_tanh_cell": _cell(_tanh_step),
    "rnn_relu_cell": _cell(_relu_step),
    "_thnn_fused_lstm_cell": _fused_lstm_cell,
}
