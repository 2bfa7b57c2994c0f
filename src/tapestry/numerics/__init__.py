"""Oracle, error metrics, tolerance rules, and their comparison into a verdict.

The lowest layer: it knows ATen calls and tensors, nothing of programs, suites or devices. ``verdict`` and
``judgement`` are free of torch, so importing this package is too: the rest loads on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tapestry.numerics.judgement import Judgement, Metrics
from tapestry.numerics.verdict import Verdict

if TYPE_CHECKING:
    from tapestry.numerics.arguments import flatten_result
    from tapestry.numerics.call_bound import Bound, bound_of
    from tapestry.numerics.float64 import is_random, oracle, oracle_args, to_oracle_dtype
    from tapestry.numerics.judging import judge
    from tapestry.numerics.no_oracle import NoOracle
    from tapestry.numerics.whole import ProgramError, program_bound, program_error

_HOME = {
    "Bound": "call_bound",
    "bound_of": "call_bound",
    "flatten_result": "arguments",
    "judge": "judging",
    "NoOracle": "no_oracle",
    "is_random": "float64",
    "oracle": "float64",
    "oracle_args": "float64",
    "to_oracle_dtype": "float64",
    "ProgramError": "whole",
    "program_bound": "whole",
    "program_error": "whole",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Bound",
    "Judgement",
    "Metrics",
    "NoOracle",
    "ProgramError",
    "Verdict",
    "bound_of",
    "flatten_result",
    "is_random",
    "judge",
    "oracle",
    "oracle_args",
    "program_bound",
    "program_error",
    "to_oracle_dtype",
]
