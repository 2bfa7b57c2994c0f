"""The beginning of a kernel: it loads, takes the cases that it names and no others, and says what there is to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from support.unfinished_kernels import OPS, begun, declared, kinds_suite
from tapestry.backends.compiler import Compiler
from tapestry.backends.kernels.backend import Kernels
from tapestry.backends.kernels.declare import declared as kernels_of
from tapestry.backends.kernels.schedule import KernelOptions
from tapestry.backends.registry import ready_backend
from tapestry.errors import CompileError, UsageError
from tapestry.program.graph import Graph
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.open import open_device
from tapestry.runtime.resident import Resident
from tapestry.suite.case import Case
from tapestry.suite.on_target import Target, replay_on
from tapestry.suite.skeleton.operator import operator_in, operator_of_torch
from tapestry.suite.skeleton.text import described, skeleton

#: The line that is to be deleted once the body is written.
GUARD = re.compile(r"^    raise NotImplementedError\(.*\)\n", re.M)


def info_of(device: str) -> DeviceInfo:
    dtypes = {"float32", "int32"} | ({"uint8", "int64"} if device == "opencl" else set())
    return DeviceInfo(device, f"{device}:0", "a device", "fingerprint", dtypes=frozenset(dtypes))


def taken_by_file(path: Path, graph: Graph, device: str) -> bool:
    """Whether the kernel of a file, and not one that ships, takes a graph's only call."""
    own = [entry for entry in kernels_of(device) if entry.file == str(path.resolve())]
    assert own
    return any(entry.pattern.refuses_in(graph, "n0", info_of(device)) is None for entry in own)


@pytest.mark.parametrize("device", ["opencl", "webgpu"])
@pytest.mark.parametrize("op", OPS)
def test_it_takes_its_cases_and_says_what_there_is_to_do(op: str, device: str, tmp_path: Path) -> None:
    made = begun(op, device)
    path = tmp_path / "begun.py"
    path.write_text(made.text)
    assert made.cases
    with declared(path):
        for case in made.cases:
            graph = case.load_graph()
            assert taken_by_file(path, graph, device), case.id
            with pytest.raises(CompileError, match=r"begun\.py:\d+.*to do: write the body") as refused:
                Kernels().compile(graph, info_of(device), KernelOptions())
            line = int(re.search(r"begun\.py:(\d+)", str(refused.value))[1])  # type: ignore[index]
            assert GUARD.match(made.text.splitlines(keepends=True)[line - 1])
        for _, cases in made.others:
            assert not any(taken_by_file(path, case.load_graph(), device) for case in cases)


@pytest.mark.parametrize("op", OPS)
def test_its_docstring_names_its_cases_with_shapes_dtypes_and_attributes(op: str) -> None:
    made = begun(op, "opencl")
    text = " ".join((ast.get_docstring(ast.parse(made.text)) or "").split())
    for case in made.cases:
        assert f"{case.id}: {described(case.load_graph())}" in text


def test_a_described_case() -> None:
    (case,) = (case for case in kinds_suite().cases if case.op == "aten.add.Tensor" and "alpha" in case.graph)
    assert described(case.load_graph()) == "self float32 [4, 8], other float32 [4, 8], alpha=2 -> float32 [4, 8]"
    (case,) = (case for case in kinds_suite().cases if case.op == "aten.max.dim")
    assert described(case.load_graph()) == "self float32 [4, 24], dim=1 -> float32 [4], int64 [4]"


def test_forms_have_kernels_of_their_own() -> None:
    made = begun("aten.linear.default", "opencl")
    assert len(made.cases) == len(made.others) == 1  # with a bias and without one
    assert {form.dtypes for form, _ in begun("aten.add.Tensor", "opencl").others} == {frozenset({"int64"})}


def test_types_that_no_kernel_of_a_device_holds() -> None:
    suite = carved_in(torch.float64)
    with pytest.raises(UsageError, match="WGSL has no type for float64"):
        skeleton("aten.relu.default", suite, "webgpu", [])
    assert skeleton("aten.relu.default", suite, "opencl", []).cases == tuple(suite)


def carved_in(dtype: torch.dtype) -> list[Case]:
    from tapestry.program.capture import capture
    from tapestry.suite.carve import carve

    x = torch.ones(3, dtype=dtype)
    return list(carve(capture(torch.nn.ReLU(), (x,), {}), [(x,)]).cases)


@pytest.mark.parametrize("name", ["gelu", "aten.gelu", "aten.gelu.default"])
def test_names_of_an_operator(name: str) -> None:
    assert operator_in(name, kinds_suite(), "the suite") == "aten.gelu.default"
    assert operator_of_torch(name) == "aten.gelu.default"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aten.gelo", "no operator aten.gelo; did you mean aten.gelu"),
        ("zzzzzzzzzz", "none is called similarly"),
        ("aten.add.Wrong", "no overload aten.add.Wrong; it has"),
        ("aten.silu", r"the suite has no case of aten.silu; it has \d+ operators.*--schema aten.silu.default"),
    ],
)
def test_names_that_are_none(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        operator_in(name, kinds_suite(), "the suite")


def test_a_name_of_several_overloads() -> None:
    with pytest.raises(
        UsageError, match=r"several overloads in torch: expected one of aten\.add\.Tensor, aten\.add\.S"
    ):
        operator_of_torch("add")


@pytest.mark.parametrize("device", ["cpu", "cuda", "nothing"])
def test_a_device_without_kernels(device: str) -> None:
    with pytest.raises(UsageError, match=r"hand-written kernels \(opencl, webgpu\)"):
        begun("aten.gelu.default", device)


@pytest.mark.slow
@pytest.mark.parametrize(
    "device", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("opencl", "webgpu")]
)
def test_every_body_builds_and_is_wrong(device: str, tmp_path: Path) -> None:
    """Without the line that refuses: the device compiles and runs each body, and no case passes by it."""
    resident = Resident(open_device(f"{device}:0"))
    try:
        with Compiler() as compiler:
            target = Target.of(resident, ready_backend("kernels"), compiler)
            for op in OPS:
                made = begun(op, device)
                path = tmp_path / f"{made.name}.py"
                path.write_text(GUARD.sub("", made.text))
                with declared(path):
                    found = replay_on(target, kinds_suite(), cases=made.cases)
                assert {str(entry.verdict) for entry in found.results} == {"fail"}, (op, found.results[0].reason)
    finally:
        resident.device.close()
