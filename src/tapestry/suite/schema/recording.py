"""Which ATen overloads a Python call makes, with the values they are given: as torch.export sees them, and below.

torch.export reads the calls before composite operators are taken apart; an ordinary dispatch mode sees only what is
left of them (no ``linear``, no ``reshape``). Torch runs modes at that place for real values too, but takes only its own
schema checker there, so the recorder is one. Not here: what is recorded (samples).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dispatch.python import enable_pre_dispatch, enable_python_dispatcher, no_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode

#: Told of a call before it runs: overload, positional and named arguments.
Sink = Callable[[OpOverload, tuple[object, ...], Mapping[str, object]], None]


class _AsExported(SchemaCheckMode):
    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._dispatch_key = DispatchKey.PreDispatch
        self.sink = sink
        self.running: OpOverload | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        self.sink(func, args, named)
        self.running = func
        # Eager's own kernels, not the Python ones that serve tracing.
        with no_python_dispatcher():
            return func(*args, **named)


class _Below(TorchDispatchMode):
    """The calls that reach kernels; what ``above`` was told already is not told again."""

    def __init__(self, sink: Sink, above: _AsExported) -> None:
        super().__init__()
        self.sink = sink
        self.above = above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is not self.above.running:
            self.sink(func, args, named)
        return func(*args, **named)


@contextmanager
def recording(as_exported: Sink, below: Sink | None = None) -> Generator[None]:
    """Report the calls made inside, each before it runs.

    ``as_exported`` is told what torch.export's graph holds before ``run_decompositions``; ``below``, where given, what
    composite operators are made of when they run.
    """
    mode = _AsExported(as_exported)
    with torch.no_grad():
        if below is None:
            with enable_python_dispatcher(), enable_pre_dispatch(), mode:
                yield
        else:
            with _Below(below, mode), enable_python_dispatcher(), enable_pre_dispatch(), mode:
                yield
