"""Whether a fresh program computes what the model did in eager mode: torch.export has been wrong without a word.

Not here: judging a platform (numerics). Source and program run the same kernels, so this asks for little and finds
lost writes and swapped values.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tapestry.errors import CaptureError
from tapestry.program import traits
from tapestry.program.aliasing import Observed
from tapestry.program.graph import Ref
from tapestry.program.interpret import run_program, start_values
from tapestry.program.program import Program

#: Relative to the largest magnitude. A decomposition may round differently; a swapped value is off by about 1.
_TOLERANCE = 1e-2


def check_against_eager(
    program: Program, args: tuple[object, ...], kwargs: Mapping[str, object], seen: Observed
) -> None:
    """Run the program on the example and compare results and written state. CaptureError where they differ.

    A program with random or uninitialised values is not compared.
    """
    if any(traits.is_random(node.call) or traits.is_uninitialised(node.call.target) for node in program.nodes):
        return
    state = {name: program.tensors[name] for name in program.state_names if name in program.tensors}
    values = run_program(program, start_values(program, program.bind(args, kwargs), state))
    for place, (output, want) in enumerate(zip(program.outputs, seen.leaves, strict=True)):
        got = values[output.value] if isinstance(output.value, Ref) else output.value
        if isinstance(want, torch.Tensor) and not _alike(got, want):
            raise CaptureError(
                f"torch.export gives a graph that computes another result number {place} than the model does; "
                "look for a buffer that is assigned anew, or data written through .data or NumPy"
            )
    written = {entry.name: values[entry.result] for entry in program.state}
    for name, want in seen.changed.items():
        if not _alike(written.get(name), want):
            raise CaptureError(
                f"the model writes {name}, and torch.export loses that; write with copy_ or index_copy_, not by .data"
            )


def _alike(got: object, want: torch.Tensor) -> bool:
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return False
    if want.numel() == 0:
        return True
    if not (want.is_floating_point() or want.is_complex()):
        return torch.equal(got, want)
    if want.is_complex():
        return _alike(torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj()))
    one, other = got.double(), want.double()
    finite = other[other.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
