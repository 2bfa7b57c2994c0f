"""The constant values of a program: parameters, buffers it never writes, results of folded nodes.

Not here: a region's share of them (backends.region_constants).
"""

from __future__ import annotations

from functools import cached_property

import torch

from tapestry.program.graph import Ref
from tapestry.program.interpret import fold
from tapestry.program.program import Program, tensor_digest


class ProgramConstants:
    """A ConstantSource. Shared by all executables of a program, so that nothing is folded or hashed twice."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._digests: dict[Ref, str] = {}

    def is_constant(self, ref: Ref) -> bool:
        """Whether a value is the same in every run."""
        return self.program.is_constant(ref)

    @cached_property
    def folded(self) -> dict[Ref, torch.Tensor]:
        """Results of folded nodes that other nodes or the outputs read."""
        return fold(self.program)

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The value of a constant; KeyError for a value that changes from run to run."""
        found = self.folded.get(ref)
        return self.program.tensors[ref.name] if found is None else found

    def digest(self, ref: Ref) -> str:
        """The content digest of a constant."""
        if ref not in self._digests:
            self._digests[ref] = tensor_digest(self.tensor(ref))
        return self._digests[ref]
