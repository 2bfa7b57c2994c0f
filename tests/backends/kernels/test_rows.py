"""Rows written in place: right wherever they go, and in a cache that stays on the device without copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backends
from tapestry.migration.engine import Migration
from tapestry.program.capture import capture
from tapestry.program.inputs import CallArgs, InputSet
from tapestry.runtime.device import CopyBuffer
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.on_target import Target, run_once

DEVICES = [
    pytest.param("opencl:0", marks=pytest.mark.opencl),
    pytest.param("webgpu:0", marks=pytest.mark.webgpu),
]
ROWS = 64


@pytest.fixture(scope="module", params=DEVICES)
def targets(request: pytest.FixtureRequest) -> Iterator[list[Target]]:
    resident = Resident(open_device(request.param))
    with Compiler() as compiler:
        yield [Target.of(resident, backend, compiler) for backend in ready_backends("kernels,tvm")]
    resident.device.close()


class Cached(torch.nn.Module):
    """Keys gain a row a call; what is read are products with all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 3, ROWS, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        keys = cast("torch.Tensor", self.keys)
        keys.index_copy_(2, position, x)
        return x @ keys.transpose(-1, -2)


def test_a_cache_is_written_where_it_is(targets: list[Target]) -> None:
    generator = torch.Generator().manual_seed(0)
    calls = tuple(
        CallArgs((torch.randn(2, 3, 1, 8, generator=generator), torch.tensor([place]))) for place in (0, 1, 40)
    )
    program = capture(Cached(), calls[0].args)
    inputs = (InputSet(calls),)
    outcome = Migration(program, carve(program, inputs), inputs, targets).run()
    assert outcome.findings == ()
    assert outcome.final.good
    executable = outcome.executable
    (kept,) = executable.layout.kept
    assert (kept.name, kept.in_place) == ("buffer:keys", True)
    executable.reset()
    for call in calls:
        executable(*call.args)
    # Up go a row of 2 × 3 × 8 floats and a place, down the products and the place, which the host checks.
    assert executable.log.upload_bytes <= 2 * 3 * 8 * 4 + 8
    assert executable.log.download_bytes <= 2 * 3 * ROWS * 4 + 8
    (written,) = (entry for entry in executable.layout.bound_steps if entry.bound.compiled.updates)
    where = kept.where
    buffers = [executable.layout.buffer(ref, where) for ref in written.step.region.inputs]
    (result,) = written.step.region.outputs
    commands = written.bound.commands(buffers, [executable.layout.buffer(result, where)])
    assert not any(isinstance(command, CopyBuffer) for command in commands)
    assert executable.state["buffer:keys"][:, :, 40].abs().sum() > 0
    executable.close()


@pytest.mark.parametrize(
    ("shape", "dim", "index", "dtype"),
    [
        ((5,), 0, [4, 0], torch.float32),
        ((3, 7), -1, [6], torch.int32),
        ((2, 3, 4), 0, [1], torch.bfloat16),
        ((2, 3, 4), 1, [2, 0, 1], torch.bool),
        ((70_000, 2), 0, [69_999, 3], torch.float16),
        ((1, 1, 1, 1), 3, [0], torch.float32),
    ],
)
def test_elsewhere_it_is_a_copy_with_new_rows(
    targets: list[Target], shape: tuple[int, ...], dim: int, index: list[int], dtype: torch.dtype
) -> None:
    source_shape = list(shape)
    source_shape[dim] = len(index)
    x, source = torch.arange(float(torch.Size(shape).numel())).reshape(shape), -torch.rand(source_shape) - 1
    args = ((x % 2).to(dtype), torch.tensor(index), source.to(dtype))
    program = capture(lambda a, i, s: torch.index_copy(a, dim, i, s), args)
    suite = carve(program, [args])
    (case,) = suite.cases
    target, graph = targets[0], case.load_graph()
    compiled = target.compiler.compile(target.backend, graph, target.resident.device.info, target.options)
    (got,) = run_once(target.resident, graph, compiled, suite.inputs(case))
    assert torch.equal(got, torch.index_copy(args[0], dim, args[1], args[2]))
