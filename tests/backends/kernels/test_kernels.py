"""Hand-written kernels on OpenCL: they win where they match, and whatever is wrong with one is reported, not fatal."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path

import pytest
import torch

from tapestry.backends.compiler import Compiler
from tapestry.backends.kernels import declare
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.kernels.loading import load_kernels
from tapestry.backends.kernels.schedule import KernelOptions
from tapestry.backends.registry import ready_backends
from tapestry.backends.rules import MatchView, any_, dtypes, op, same_shape
from tapestry.errors import UsageError
from tapestry.migration.engine import Migration, Outcome
from tapestry.migration.explain import explain
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.program.region import region_of
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.carve import carve
from tapestry.suite.on_target import Target

pytestmark = pytest.mark.opencl

RIGHT = "if (i < N) { float v = x[i]; out[i] = 0.5f * v * erfc(-v * 0.70710678f); }"


def write_gelu(body: str, bindings: tuple[str, ...] = ("x", "out"), entry: str = "gelu", groups: int = 0) -> None:
    """Declare a gelu kernel; ``x`` is not const, so that a body may do what it must not."""

    def gelu(m: MatchView) -> Dispatch:
        count = m.spec("x").numel
        source = f"__kernel void gelu(__global float* x, __global float* out) {{ int i = get_global_id(0); {body} }}"
        dispatch = Dispatch(source, entry, bindings, (groups or ceil(count / 64),), (64,), {"N": count})
        return dispatch

    kernel(device="opencl", pattern=op("aten.gelu", any_("x"), approximate="none"), when=dtypes("float32"))(gelu)


def write_add_relu(body: str) -> None:
    def add_relu(m: MatchView) -> Dispatch:
        count = m.spec("a").numel
        arguments = "__global const float* a, __global const float* b, __global float* out"
        source = f"__kernel void add_relu({arguments}) {{ int i = get_global_id(0); if (i < N) {{ {body} }} }}"
        return Dispatch(source, "add_relu", ("a", "b", "out"), (ceil(count / 64),), (64,), {"N": count})

    pattern = op("aten.relu", op("aten.add.Tensor", any_("a"), any_("b")))
    kernel(device="opencl", pattern=pattern, when=same_shape("a", "b"))(add_relu)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.relu(self.a(x) + self.b(x)))


@pytest.fixture(autouse=True)
def no_kernels_left() -> Iterator[None]:
    yield
    declare.forget(__file__)


@pytest.fixture(scope="module")
def targets() -> Iterator[list[Target]]:
    device = open_device("opencl:0", timeout=10)
    resident = Resident(device)
    with Compiler() as compiler:
        yield [Target.of(resident, backend, compiler) for backend in ready_backends("kernels,tvm")]
    device.close()


def migrated(targets: list[Target], model: torch.nn.Module | None = None, x: torch.Tensor | None = None) -> Outcome:
    torch.manual_seed(0)
    model, x = (model or Model()).eval(), torch.randn(4, 8) if x is None else x
    program = capture(model, (x,))
    inputs = as_input_sets([(x,)])
    outcome = Migration(program, carve(program, inputs), inputs, targets).run()
    assert outcome.final.good
    torch.testing.assert_close(outcome.executable(x), model(x))
    outcome.executable.close()
    return outcome


def backends(outcome: Outcome) -> dict[str, str]:
    return {node: region.backend for region in outcome.placement.regions for node in region.nodes}


def test_a_kernel_wins_over_the_compiler(targets: list[Target]) -> None:
    write_gelu(RIGHT)
    outcome = migrated(targets)
    assert outcome.findings == ()
    assert backends(outcome) == {
        "a.linear": "kernels", "b.linear": "kernels", "add": "kernels", "relu": "tvm", "gelu": "kernels",
    }  # fmt: skip


def test_a_kernel_of_the_user_wins_over_one_that_ships_for_more_calls(targets: list[Target]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    x = torch.randn(4, 8)
    assert {region.nodes for region in migrated(targets, model, x).placement.regions} == {("0.linear", "1.gelu")}
    write_gelu(RIGHT)
    assert {region.nodes for region in migrated(targets, model, x).placement.regions} == {("0.linear",), ("1.gelu",)}


def test_a_kernel_for_two_operators_is_used_as_one_region(targets: list[Target]) -> None:
    write_add_relu("float v = a[i] + b[i]; out[i] = v < 0.0f ? 0.0f : v;")
    outcome = migrated(targets)
    assert outcome.findings == ()
    assert ("add", "relu") in {region.nodes for region in outcome.placement.regions if region.backend == "kernels"}


def test_a_kernel_for_two_operators_that_is_wrong_is_reported_and_left_out(targets: list[Target]) -> None:
    write_add_relu("out[i] = a[i] + b[i];")
    (finding,) = migrated(targets).findings
    assert (finding.cause, finding.verdict, finding.nodes) == ("kernel", "fail", ("add", "relu"))


@pytest.mark.parametrize(
    ("body", "options", "verdict", "words"),
    [
        pytest.param("if (i < N) out[i] = x[i];", {}, "fail", "expected", id="wrong values"),
        pytest.param(RIGHT + " out[i + N] = 1;", {}, "error", "past the end of result 0", id="past its result"),
        pytest.param(RIGHT + " if (i < N) x[i] = 0;", {}, "error", "wrote into its input", id="into its input"),
        pytest.param("float v = ;", {}, "error", "does not build", id="does not compile"),
        pytest.param("if (i < N) out[i + 400000000] = 1;", {}, "crashed", "SIGSEGV", id="far out of bounds"),
        pytest.param("while (N) { }", {}, "timeout", "did not answer", id="never ends"),
        pytest.param(RIGHT, {"bindings": ("y", "out")}, "error", "binds 'y'", id="unknown binding"),
        pytest.param(RIGHT, {"bindings": ("x",)}, "error", "no buffer for its result", id="result not bound"),
        pytest.param(RIGHT, {"bindings": ("x", "x", "out")}, "error", "arguments", id="too many bindings"),
        pytest.param(RIGHT, {"entry": "nothing"}, "error", "nothing", id="unknown entry"),
        pytest.param(RIGHT, {"groups": -1}, "error", "whole numbers for groups", id="negative groups"),
    ],
)
def test_what_is_wrong_with_a_kernel_is_reported_and_the_compiler_takes_over(
    body: str, options: dict[str, object], verdict: str, words: str, targets: list[Target]
) -> None:
    write_gelu(body, **options)  # pyright: ignore[reportArgumentType]
    outcome = migrated(targets)
    (finding,) = outcome.findings
    assert (finding.cause, finding.verdict) == ("kernel", verdict)
    assert words in finding.reason
    assert finding.nodes == ("gelu",)
    assert backends(outcome)["gelu"] == "tvm"


def test_a_function_that_raises_names_its_line(targets: list[Target]) -> None:
    def broken(m: MatchView) -> Dispatch:
        raise ValueError("no idea")

    kernel(device="opencl", pattern=op("aten.gelu", any_("x")))(broken)
    (finding,) = migrated(targets).findings
    assert "ValueError: no idea" in finding.reason
    assert f"{__file__}:" in finding.reason


def test_the_latest_declaration_wins(targets: list[Target]) -> None:
    write_gelu("out[i] = 0;")
    write_gelu(RIGHT)
    assert migrated(targets).findings == ()


def test_editing_a_kernel_changes_its_key_alone(targets: list[Target]) -> None:
    program = capture(Model().eval(), (torch.zeros(4, 8),))
    graph = region_of(program, ["gelu"]).graph
    info = targets[0].resident.device.info
    write_gelu(RIGHT)
    before = Kernels().fingerprint_for(graph, info, KernelOptions())
    assert Kernels().fingerprint_for(graph, info, KernelOptions()) == before
    write_add_relu("out[i] = 0;")
    assert Kernels().fingerprint_for(graph, info, KernelOptions()) == before
    write_gelu(RIGHT + " ")
    assert Kernels().fingerprint_for(graph, info, KernelOptions()) != before


def test_explain_says_what_kernel_and_compiler_make_of_a_node(targets: list[Target]) -> None:
    write_gelu("if (i < N) out[i] = x[i];")
    write_add_relu("out[i] = a[i] + b[i];")
    x = torch.randn(4, 8)
    program = capture(Model().eval(), (x,))
    suite = carve(program, [(x,)])
    resident, compiler = targets[0].resident, targets[0].compiler

    def answers(node: str) -> dict[str, str]:
        found = explain(program, node, suite, resident, compiler, ("eager", "kernels", "tvm"))
        return {entry.backend: entry.answer for entry in found.backends}

    assert answers("gelu") == {"eager": "other device", "kernels": "wrong", "tvm": "right"}
    assert answers("relu") == {"eager": "other device", "kernels": "in a pattern", "tvm": "right"}
    assert answers("a.linear") == {"eager": "other device", "kernels": "right", "tvm": "right"}


def test_a_file_of_kernels_that_is_unfit_is_refused(tmp_path: Path) -> None:
    for text, words in (
        ("x = 1", "declares no kernel"),
        ("1 / 0", r"ZeroDivisionError.*line 1"),
        ("def", "SyntaxError"),
    ):
        file = tmp_path / "kernels.py"
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            load_kernels(file)
    with pytest.raises(UsageError, match="got nothing"):
        load_kernels(tmp_path / "absent.py")


def test_a_kind_of_device_without_kernels_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a device with kernels"):
        kernel(device="host", pattern=op("aten.gelu", any_("x")))
