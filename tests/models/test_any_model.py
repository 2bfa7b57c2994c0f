"""Any model: each kind in the zoo, and each form of file, moves with every compute node or says exactly why not.

What the moved model returns is compared with eager: structure, dtype, shape, 0-d tensors, which results are the
caller's own tensors, and values. The tolerance is the whole-program bound of docs/numerics.md, max(1e-5, 4 times the
source's own error against float64), plus that error once more because here the comparison is with the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from support.huggingface_files import TINY_LLAMA, save
from support.pt2_files import save_pt2
from tapestry.migration.migrate import Migrated, migrate
from tapestry.migration.result import MigrationResult
from tapestry.models.load import load_model
from tapestry.models.loaded import LoadedModel
from tapestry.models.zoo.registry import list_zoo
from tapestry.numerics import program_bound, program_error
from tapestry.program.capture import capture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

OPENCL = pytest.param("opencl:0", marks=pytest.mark.opencl)
WEBGPU = pytest.param("webgpu:0", marks=pytest.mark.webgpu)
MARKS = {"opencl:0": [pytest.mark.opencl], "webgpu:0": [pytest.mark.webgpu], "cpu": []}
#: Models that are moved to a device each time; the others wait for the thorough tests.
OFTEN = {"opencl:0": {"convnet", "llama", "recurrent"}, "webgpu:0": {"integers", "vit"}, "cpu": {"bert", "gpt2"}}


def pairs() -> list[Any]:
    """Every model of the zoo on every device."""
    found: list[Any] = []
    for entry in list_zoo():
        for to, often in OFTEN.items():
            rarely = [] if entry.name in often else [pytest.mark.thorough]
            found.append(pytest.param(entry.name, to, marks=[*MARKS[to], *rarely]))
    return found


FACTORY = """
import torch

class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x):
        values = torch.linalg.eigvalsh(x @ x.transpose(-1, -2))
        return torch.relu(self.linear(x)) + values

def make():
    torch.manual_seed(0)
    return Odd().eval(), (torch.randn(6, 6),)
"""


def move(loaded: LoadedModel, to: str) -> Migrated:
    call = loaded.inputs[0].calls[0]
    program = capture(loaded.module, call.args, call.kwargs, name=loaded.name)
    return migrate(program, to, loaded.inputs, eager=loaded.module)


def check_every_node(result: MigrationResult) -> None:
    """Each compute node ran on the target, by the driver's launch log, or stands in ``blocked`` with its reason."""
    off = {record.node for record in result.nodes if record.compute and record.place == "source"}
    reasons = {entry.node: entry.reason for entry in result.blocked}
    assert off <= set(reasons)
    assert all(reasons[node] for node in off)
    assert result.coverage.compute_on_target == result.coverage.compute_total - len(off)
    assert result.coverage.compute_total > 0
    assert {node for finding in result.findings for node in finding.nodes} >= off


@torch.no_grad()
def check_results(loaded: LoadedModel, moved: Migrated) -> None:
    """The executable returns what eager returns, on every input."""
    source_error = moved.result.check.source_error
    allowed = program_bound(source_error) + source_error
    for entry in loaded.inputs:
        for call in entry.calls:
            want, want_tree = pytree.tree_flatten(loaded.module(*call.args, **call.kwargs))
            got, got_tree = pytree.tree_flatten(moved.executable(*call.args, **call.kwargs))
            assert got_tree == want_tree
            given = {id(leaf) for leaf in pytree.tree_leaves((call.args, dict(call.kwargs)))}
            for ours, eager in zip(got, want, strict=True):
                assert type(ours) is type(eager)
                if isinstance(eager, torch.Tensor):
                    assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
                    assert (id(ours) in given) == (id(eager) in given)
            tensors = [(ours, eager) for ours, eager in zip(got, want, strict=True) if isinstance(eager, torch.Tensor)]
            error = program_error([ours for ours, _ in tensors], [eager for _, eager in tensors])
            assert error.max_rel_error <= allowed
            assert all(
                ours == eager for ours, eager in zip(got, want, strict=True) if not isinstance(eager, torch.Tensor)
            )


def check_model(loaded: LoadedModel, to: str) -> MigrationResult:
    with move(loaded, to) as moved:
        check_every_node(moved.result)
        check_results(loaded, moved)
        assert moved.result.check.good
        return moved.result


@pytest.mark.parametrize(("name", "to"), pairs())
def test_the_zoo_moves_wholly(name: str, to: str) -> None:
    result = check_model(load_model(f"zoo:{name}"), to)
    reasons = [entry.reason for entry in result.blocked]
    if (name, to) == ("integers", "webgpu:0"):
        assert reasons
        assert all("may not fit the 32 bits" in reason for reason in reasons)
    else:
        assert reasons == []
    assert result.coverage.compute_nodes == 1.0


@pytest.mark.minilm
@pytest.mark.thorough
@pytest.mark.parametrize("to", [WEBGPU])
def test_minilm_moves_wholly(to: str) -> None:
    """The first tier on WebGPU; `make demo` is the same on OpenCL."""
    loaded = load_model("demo:minilm")
    with move(loaded, to) as moved:
        check_every_node(moved.result)
        assert moved.result.check.good
        assert moved.result.coverage.compute_nodes == 1.0
        assert moved.result.coverage.compute_total == 79


@pytest.mark.parametrize("to", [OPENCL, WEBGPU, "cpu"])
def test_what_the_target_lacks_stays_and_is_explained(tmp_path: Path, to: str) -> None:
    """Eigenvalues have no kernel in OpenCL; on the host, the eager backend has everything."""
    path = tmp_path / "model.py"
    path.write_text(FACTORY)
    result = check_model(load_model(f"{path}:make"), to)
    kept = {entry.op: entry.reason for entry in result.blocked}
    if to == "cpu":
        assert kept == {}
    else:
        assert [op for op in kept if "linalg_eig" in op]
        assert not [op for op in kept if "linear" in op or "relu" in op]
        assert 0.5 < result.coverage.compute_nodes < 1.0


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("steps", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, object]:
        hidden = self.linear(x) * scale + self.steps + torch.tensor([1.0, 0.0, -1.0, 2.0])
        return {"hidden": hidden, "pair": (x, hidden.amax())}


@pytest.mark.parametrize("to", [OPENCL, "cpu"])
def test_a_pt2_file(tmp_path: Path, to: str) -> None:
    path = save_pt2(tmp_path / "pair.pt2", Pair().eval(), (torch.randn(3, 8),), {"scale": torch.tensor(0.5)})
    result = check_model(load_model(str(path)), to)
    assert result.coverage.compute_nodes == 1.0


@pytest.mark.parametrize("to", [WEBGPU, "cpu"])
def test_a_hugging_face_directory(tmp_path: Path, to: str) -> None:
    pytest.importorskip("transformers")
    save(tmp_path, "LlamaForCausalLM", "LlamaConfig", **TINY_LLAMA)
    result = check_model(load_model(f"hf:{tmp_path}"), to)
    assert result.coverage.compute_nodes == 1.0
