"""Executables with real kernels: TVM's on OpenCL and WebGPU give what eager gives, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.eager_device import alone, whole
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import ready_backend
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.grouping import group_by_label
from tapestry.placement.placement import place_on
from tapestry.program.capture import capture
from tapestry.runtime.device import DeviceStats
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEVICES = [
    pytest.param("opencl:0", marks=pytest.mark.opencl),
    pytest.param("webgpu:0", marks=pytest.mark.webgpu),
]


class Step(torch.nn.Module):
    """An embedding at a computed index, a cache written by slices, a view of it returned, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(6, 4)
        self.inner = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(3, 4))

    def forward(self, i: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.nn.functional.gelu(self.inner(self.table(i + 1)))
        self.cache.copy_(torch.cat([x, self.cache[:2]]))
        return {"mean": self.cache.mean(), "first": self.cache[:1], "softmax": torch.softmax(x, -1)}


@pytest.fixture(params=DEVICES)
def place(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[whole, alone], ids=["whole", "alone"])
def executable(request: pytest.FixtureRequest, place: str) -> Iterator[Executable]:
    model = Step().eval()
    program = capture(model, (torch.tensor([1]),), {})
    device = open_device(place)
    backend = ready_backend("tvm")
    name = device.info.name
    nodes = {
        node_id: label
        for node_id, label in request.param(program).items()
        if backend.refuses(program.by_id[node_id].call, device.info) is None
    }
    assert len(nodes) >= len(program.placeable) // 2
    with Compiler() as compiler:
        builder = Builder(program, {name: Resident(device)}, compiler, {"tvm": backend})
        placement = place_on(program, group_by_label(program, nodes), backend, backend.options()[0], name)
        with builder.build(placement) as made:
            yield made
    assert device.stats() == DeviceStats(0, 0, 0)
    device.close()


def test_calls_with_state(executable: Executable) -> None:
    model = Step().eval()
    kept: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    for number in (1, 0, 4, 2, 3):
        i = torch.tensor([number])
        with torch.no_grad():
            want = {name: value.clone() for name, value in model(i).items()}
        got = executable(i)
        assert isinstance(got, dict)
        assert (
            got["first"].untyped_storage().data_ptr() == executable.state["buffer:cache"].untyped_storage().data_ptr()
        )
        kept.append(({**got, "first": got["first"].clone()}, want))
    for got, want in kept:
        for name, value in want.items():
            assert got[name].shape == value.shape
            # Some tens of roundings of values near 1.
            assert torch.allclose(got[name], value, rtol=1e-5, atol=1e-6)
    executable.reset()
    before = executable.state["buffer:cache"].clone()
    with pytest.raises(IndexError, match="index out of range"):
        executable(torch.tensor([5]))
    assert torch.equal(executable.state["buffer:cache"], before)
