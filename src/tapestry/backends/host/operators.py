"""Conversions list every operator that PyTorch knows, dozens of times each; here only what is new is looked up.

torch.export walks all composite operators of the dispatcher once for each namespace, in every export and every
decomposition: a third of what a conversion takes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._export import utils

_look_up = utils._materialize_cpp_cia_ops  # noqa: SLF001 (there is no public name)
_known: set[str] = set()


@contextmanager
def operators_kept() -> Generator[None]:
    """Inside it, composite operators that were looked up before are not looked up again; new ones are."""
    module: Any = utils
    own = module._materialize_cpp_cia_ops  # noqa: SLF001
    module._materialize_cpp_cia_ops = _look_up_new  # noqa: SLF001
    try:
        yield
    finally:
        module._materialize_cpp_cia_ops = own  # noqa: SLF001


def _look_up_new() -> None:
    library: Any = torch._C  # noqa: SLF001
    names = library._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")  # noqa: SLF001
    if not _known.issuperset(names):
        _look_up()
        _known.update(names)
