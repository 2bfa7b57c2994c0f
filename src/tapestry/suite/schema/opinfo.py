"""PyTorch's table of operator samples (OpInfo): importing it, its entries, and the ways to call one.

An adapter of a testing module of torch that has no public name. Not here: what the entries' calls become (samples),
and which entry knows which overload (index).
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from tapestry.extras import missing

#: Dtypes in which samples are asked for, in this order; complex ones serve operators that take nothing else.
DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.float64,
    torch.complex64,
)

_SEED = 20251201


@cache
def entries() -> dict[str, Any]:
    """The OpInfo entries by name and variant, in the table's order. About five seconds on the first call.

    Raises EnvironmentProblem when a package that the table needs is missing.
    """
    environment = dict(os.environ)
    try:
        with seeded():
            from torch.testing._internal import common_utils
            from torch.testing._internal.common_methods_invocations import op_db
    except ModuleNotFoundError as error:
        problem = missing(error, "PyTorch's table of operator samples")
        if problem is None:
            raise
        raise problem from error
    finally:
        # The module configures torch's own test runs: caches move, and backend flags are locked for the process.
        os.environ.clear()
        os.environ.update(environment)
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    # It seeds before each sample, NumPy and all devices too, which takes longer than most samples and outlasts them.
    common_utils.set_rng_seed = _seed
    return {f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name: info for info in op_db}


def forms(info: Any) -> dict[str, Callable[..., object]]:
    """The callables of an entry: the function, its method, in-place and operator forms, and its other names."""
    found = {
        "function": info.op,
        "method": info.method_variant,
        "inplace": info.inplace_variant,
        "operator": info.operator_variant,
        "inplace_operator": info.inplace_operator_variant,
    }
    for alias in info.aliases:
        found[f"function:{alias.name}"] = alias.op
        found[f"method:{alias.name}"] = alias.method_variant
        found[f"inplace:{alias.name}"] = alias.inplace_variant
    return {form: function for form, function in found.items() if callable(function)}


def writes(form: str) -> bool:
    """Whether a form writes its first argument."""
    return form.startswith("inplace")


def dtypes(info: Any) -> tuple[torch.dtype, ...]:
    """The dtypes of DTYPES that the entry has samples for on the CPU; complex ones where there are no others."""
    found = tuple(dtype for dtype in DTYPES if dtype in info.dtypes)
    return tuple(dtype for dtype in found if not dtype.is_complex) or found


def samples(info: Any, dtype: torch.dtype) -> Iterator[tuple[tuple[object, ...], dict[str, object], bool]]:
    """Arguments and keyword arguments of the entry's samples, and whether the first argument is broadcast.

    An entry that cannot make (more) samples on this machine ends: that is not an error of the caller.
    """
    try:
        made = iter(info.sample_inputs("cpu", dtype, requires_grad=False))
        for sample in made:
            yield (sample.input, *sample.args), dict(sample.kwargs), bool(sample.broadcasts_input)
    except Exception:
        return


def _seed(seed: int = _SEED) -> None:
    # The generator's own method: torch.manual_seed asks every other device, too, which takes milliseconds.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)


@contextmanager
def seeded() -> Generator[None]:
    """Fixed random numbers and no warnings inside; the caller's random state comes back afterwards."""
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    _seed()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
