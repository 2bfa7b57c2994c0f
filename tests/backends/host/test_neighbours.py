"""Runtimes in one process: neither slows the other, whatever is imported first, and affinity stays the system's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.host_bench import ready

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
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("opener", "pair"),
    [
        ("worker", ("onnxruntime", "openvino")),
        pytest.param("worker", ("openvino", "executorch"), marks=pytest.mark.thorough),
        pytest.param("worker", ("onnxruntime", "inductor"), marks=pytest.mark.thorough),
        pytest.param("in-process", ("onnxruntime", "inductor"), marks=pytest.mark.thorough),
        ("in-process", ("openvino", "executorch")),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_alternating_two_runtimes_slows_neither(
    opener: str, pair: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    """Each in a row against both in turn; the best of several tries, since the machine is shared."""
    for name in pair:
        ready(name, request.config)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, "-W", "ignore", "-P", "-m", "support.alternating", opener, *pair, str(ALLOWED)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ratios = json.loads(done.stdout)
    assert min(ratios) < ALLOWED, ratios


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_running_needs_no_torch(name: str, request: pytest.FixtureRequest) -> None:
    ready(name, request.config)
    code = f"import sys, tapestry.backends.{name}.load; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, timeout=60, check=True)
