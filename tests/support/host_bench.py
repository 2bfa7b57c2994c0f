"""A small model, and a bench that runs programs as one region of a backend on the host device."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from tapestry.backends.base import Backend, Options
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import get_backend
from tapestry.placement.build import Builder
from tapestry.placement.executable import Executable
from tapestry.placement.placement import place_on
from tapestry.program.program import Program
from tapestry.runtime.device import Device
from tapestry.runtime.open import open_device, open_in_process
from tapestry.runtime.resident import Resident

#: All four; the last two compile or import for about ten seconds.
BACKENDS = [
    "onnxruntime", "openvino", pytest.param("executorch", marks=pytest.mark.slow),
    pytest.param("inductor", marks=pytest.mark.slow),
]  # fmt: skip


class HostBench:
    """Builds programs as one region, in this process or in a worker, and closes everything at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.compiler = stack.enter_context(Compiler())
        self._residents: dict[bool, Resident] = {}

    def device(self, worker: bool = False) -> Device:
        return self._resident(worker).device

    def build(
        self, program: Program, backend: Backend, options: Options | None = None, worker: bool = False
    ) -> Executable:
        placement = place_on(program, [program.placeable], backend, options or backend.options()[0], "cpu")
        builder = Builder(program, {"cpu": self._resident(worker)}, self.compiler, {backend.name: backend})
        return self._stack.enter_context(builder.build(placement))

    def _resident(self, worker: bool) -> Resident:
        if worker not in self._residents:
            device: Device = open_device("cpu") if worker else open_in_process("cpu")
            self._stack.callback(device.close)
            self._residents[worker] = Resident(device)
        return self._residents[worker]


def ready(name: str, config: pytest.Config) -> Backend:
    found = get_backend(name)
    state = found.availability()
    if not state.ready:
        (pytest.fail if config.getoption("--require-devices") else pytest.skip)(f"{name}: {state.reason}")
    return found


class Encoder(torch.nn.Module):
    """An embedding, a product, a norm and attention over 8 tokens: two results, one of them a view of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 32)
        self.first = torch.nn.Linear(32, 64)
        self.second = torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, ids: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.table(ids) + shift
        x = self.norm(x + self.second(torch.nn.functional.gelu(self.first(x))))
        heads = x.unflatten(-1, (4, 8)).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return mixed, mixed.transpose(1, 2).flatten(2)


def encoder(seed: int = 0) -> tuple[Encoder, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    ids = torch.randint(0, 50, (1, 8))
    return Encoder().eval().requires_grad_(False), (ids, torch.randn(1, 8, 32))
