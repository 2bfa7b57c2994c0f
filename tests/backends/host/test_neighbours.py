"""Runtimes in one process: neither slows the other, whatever is imported first, and affinity stays the system's."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import pytest
import torch

from support.host_bench import HostBench, ready
from tapestry.placement.executable import Executable
from tapestry.program.capture import capture
from tapestry.runtime.device import Command

#: Slower than alone by this much at most.
ALLOWED = 1.3
_ORDER = """
import importlib, os, sys
before = os.sched_getaffinity(0)
for name in sys.argv[1:]:
    importlib.import_module(name)
from tapestry.runtime.open import open_in_process
from tapestry.runtime.resident import Resident
from tapestry.backends.compiler import Compiler
from tapestry.backends.registry import get_backend
from tapestry.placement.build import Builder
from tapestry.placement.placement import place_on
from tapestry.program.capture import capture
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 8).eval().requires_grad_(False)
x = torch.randn(2, 16)
program = capture(model, (x,))
device = open_in_process("cpu")
with Compiler() as compiler:
    for name in ("onnxruntime", "openvino"):
        backend = get_backend(name)
        placement = place_on(program, [program.placeable], backend, backend.options()[0], "cpu")
        with Builder(program, {"cpu": Resident(device)}, compiler).build(placement) as executable:
            torch.testing.assert_close(executable(x), model(x), rtol=0, atol=1e-5)
assert os.sched_getaffinity(0) == before
"""


#: Each stands before and after each other one.
_ORDERS = [
    ("onnxruntime", "openvino", "torch"), ("openvino", "torch", "onnxruntime"), ("torch", "onnxruntime", "openvino"),
]  # fmt: skip


@pytest.mark.parametrize("order", _ORDERS, ids="-".join)
def test_the_order_of_imports_does_not_matter(order: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    for name in ("onnxruntime", "openvino"):
        ready(name, request.config)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-W", "ignore", "-P", "-c", _ORDER, *order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [("onnxruntime", "openvino"), ("openvino", "executorch"), ("onnxruntime", "inductor")],
    ids="-".join,
)
def test_alternating_two_runtimes_slows_neither(
    pair: tuple[str, str], host: HostBench, request: pytest.FixtureRequest
) -> None:
    """In one worker, each in a row against both in turn; the best of several tries, since the machine is shared."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).eval().requires_grad_(False)
    x = torch.randn(64, 512)
    program = capture(model, (x,))
    commands: list[list[Command]] = []
    for name in pair:
        executable = host.build(program, ready(name, request.config), worker=True)
        torch.testing.assert_close(executable(x), model(x), rtol=0, atol=1e-4)
        commands.append(commands_of(executable))
    device = host.device(worker=True)

    def seconds(*parts: list[Command]) -> float:
        return statistics.median(device.time([command for part in parts for command in part], 30))

    one, other = commands
    ratios = [seconds(one, other) / (seconds(one) + seconds(other)) for _ in range(6)]
    assert min(ratios) < ALLOWED, ratios


def commands_of(executable: Executable) -> list[Command]:
    """The commands of an executable's only region, on the buffers that its last call used."""
    (step,) = executable.layout.bound_steps
    slots, decls = executable.layout.slots[step.where], executable.layout.decls
    inputs = [slots.buffer(ref) if (ref, step.where) in decls else None for ref in step.step.region.inputs]
    return step.bound.commands(inputs, [slots.buffer(ref) for ref in step.step.region.outputs])


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_running_needs_no_torch(name: str, request: pytest.FixtureRequest) -> None:
    ready(name, request.config)
    code = f"import sys, tapestry.backends.{name}.load; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, timeout=60, check=True)
