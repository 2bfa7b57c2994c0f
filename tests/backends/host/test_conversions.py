"""What conversions keep from one to the next: nothing of it reaches what they give, or torch afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._export import utils
from torch.onnx._internal.exporter._registration import ONNXRegistry

from support.host_bench import HostBench
from tapestry.backends.base import Backend
from tapestry.backends.executorch.payload import ExecuTorchPayload
from tapestry.backends.host.operators import operators_kept
from tapestry.program.capture import capture
from tapestry.program.region import region_of

pytestmark = pytest.mark.slow


def test_a_composite_operator_that_is_new_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listing: Any = utils._collect_all_valid_cia_ops  # noqa: SLF001
    with operators_kept():
        before = listing()
        library = torch.library.Library("tapestry_listing", "FRAGMENT")
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        after = listing()
    assert {entry.name() for entry in after - before} == {"tapestry_listing::twice"}
    assert after == listing()


@pytest.mark.parametrize("backend", ["onnxruntime"], indirect=True)
def test_a_second_export_gives_the_same_bytes_and_leaves_the_exporter_as_it_was(
    host: HostBench, backend: Backend
) -> None:
    from tapestry.backends.onnxruntime.convert import to_onnx

    program = capture(torch.nn.GELU(), (torch.randn(3, 4),))
    graph = region_of(program, program.placeable).graph
    own: Any = ONNXRegistry.__dict__["from_torchlib"]
    first, second = (to_onnx(graph, ["out0"], ()) for _ in range(2))
    assert first == second
    assert ONNXRegistry.__dict__["from_torchlib"] is own


@pytest.mark.parametrize("backend", ["executorch"], indirect=True)
@pytest.mark.parametrize("weights", [False, True])
def test_only_a_region_with_weights_is_lowered_again(host: HostBench, backend: Backend, weights: bool) -> None:
    import msgspec

    model = torch.nn.Linear(4, 4) if weights else torch.nn.ReLU()
    program = capture(model.eval().requires_grad_(False), (torch.randn(3, 4),))
    graph = region_of(program, program.placeable).graph
    compiled = host.compiler.compile(backend, graph, host.device().info, backend.options()[0])
    payload = msgspec.msgpack.decode(compiled.module.payload, type=ExecuTorchPayload)
    assert bool(payload.program) != weights
