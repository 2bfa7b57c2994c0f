"""Whole graphs: constants prepared, aliases, sizes of zero, stability of the bytes, refusals with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch

from tapestry.backends.tvm.backend import Tvm
from tapestry.backends.tvm.compile import compile_graph
from tapestry.backends.tvm.options import TvmOptions
from tapestry.backends.tvm.supports import supports
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.program.serial import dumps
from tapestry.runtime.device import DeviceInfo
from tapestry.runtime.module import KernelModule

aten = torch.ops.aten
OPENCL = DeviceInfo("opencl", "opencl:0", "", "")
WEBGPU = DeviceInfo("webgpu", "webgpu:0", "", "")


def spec(*shape: int, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec.of(torch.empty(shape, dtype=dtype))


def call(name: str, op: Any, args: tuple[Any, ...], *results: TensorSpec, **kwargs: Any) -> Call:
    return Call(name, op, args, tuple(kwargs.items()), results)


def mlp() -> Graph:
    """x → linear → gelu → + x, transposed weight prepared, and the linear's raw value returned too."""
    return Graph(
        (GraphInput("i0", spec(4, 8)), GraphInput("i1", spec(8, 8), True), GraphInput("i2", spec(8), True)),
        (
            call("n0", aten.linear.default, (Ref("i0"), Ref("i1"), Ref("i2")), spec(4, 8)),
            call("n1", aten.gelu.default, (Ref("n0"),), spec(4, 8)),
            call("n2", aten.add.Tensor, (Ref("n1"), Ref("i0")), spec(4, 8)),
            call("n3", aten.view.default, (Ref("n2"), (32,)), spec(32)),
        ),
        (Ref("n3"), Ref("n0"), Ref("i0"), Ref("n0"), Ref("i2")),
    )


@pytest.mark.parametrize("schedule", ["dlight", "fallback"])
def test_all_results_come_back_once_or_twice(bench: Any, schedule: Any) -> None:
    graph = mlp()
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)
    compiled = bench.compile(graph, TvmOptions(schedule=schedule))
    got = bench.run(graph, compiled, [x, w, b])
    raw = torch.nn.functional.linear(x, w, b)
    want = [(torch.nn.functional.gelu(raw) + x).reshape(32), raw, x, raw, b]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)  # eight products of values up to 3
    assert compiled.inputs[1] == -1, "the weight is read by the preparation only"
    assert compiled.outputs[1] == compiled.outputs[3]
    assert {entry.source for entry in compiled.constants} == {"input", "prepared"}


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.sum.dim_IntList, (torch.zeros(0, 3), [0])),
        (aten.prod.default, (torch.zeros(0),)),
        (aten.cat.default, ([torch.zeros(0, 3), torch.ones(2, 3)],)),
        (aten.add.Tensor, (torch.zeros(0, 3), torch.ones(1, 3))),
        (aten.mm.default, (torch.zeros(2, 0), torch.zeros(0, 3))),
        (aten.slice.Tensor, (torch.ones(4, 3), 0, 2, 2)),
    ],
    ids=str,
)
def test_tensors_without_elements(bench: Any, op: Any, args: tuple[Any, ...]) -> None:
    got, want = bench.call(op, *args)
    assert torch.equal(got[0], want[0])


def test_a_chain_of_selections_does_not_explode(bench: Any) -> None:
    calls = tuple(call(f"n{n}", aten.relu.default, (Ref(f"n{n - 1}") if n else Ref("i0"),), spec(8)) for n in range(24))
    graph = Graph((GraphInput("i0", spec(8)),), calls, (Ref("n23"),))
    x = torch.linspace(-1, 1, 8)
    (got,) = bench.run(graph, bench.compile(graph), [x])
    assert torch.equal(got, x.relu())


def test_views_alone_need_no_kernel() -> None:
    graph = Graph(
        (GraphInput("i0", spec(2, 6)),),
        (call("n0", aten.view.default, (Ref("i0"), (3, 4)), spec(3, 4)),),
        (Ref("n0"), Ref("i0")),
    )
    compiled = compile_graph(graph, OPENCL, TvmOptions())
    assert compiled.launches == ()
    assert compiled.tensors[compiled.outputs[0]].alias == compiled.inputs[0]


_PROGRAM = """
import sys, hashlib, msgspec
from tapestry.backends.tvm.compile import compile_graph
from tapestry.backends.tvm.options import TvmOptions
from tapestry.program.serial import loads
from tapestry.runtime.device import DeviceInfo
compiled = compile_graph(loads(sys.stdin.buffer.read()), DeviceInfo("opencl", "opencl:0", "", ""), TvmOptions())
print(hashlib.sha256(msgspec.msgpack.encode(compiled)).hexdigest())
"""


@pytest.mark.slow
def test_the_same_graph_gives_the_same_bytes_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=dumps(mlp()),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_webgpu_kernels_have_a_text_and_a_grid_each() -> None:
    compiled = compile_graph(mlp(), WEBGPU, TvmOptions())
    assert isinstance(compiled.module, KernelModule)
    assert compiled.module.language == "wgsl"
    for kernel in compiled.module.kernels:
        assert f"fn {kernel.name}(" in kernel.source
        assert kernel.source.count("@compute") == 1
        assert "x" in kernel.access
        assert "r" in kernel.access
    for launch in compiled.launches:
        last = launch.args[-1]
        assert not isinstance(last, int)
        assert last.value == launch.grid[0] - 1


def test_webgpu_keeps_integers_and_truth_in_32_bits() -> None:
    graph = Graph(
        (GraphInput("i0", spec(4, dtype=torch.int64)),),
        (call("n0", aten.ge.Scalar, (Ref("i0"), 2), spec(4, dtype=torch.bool)),),
        (Ref("n0"),),
    )
    compiled = compile_graph(graph, WEBGPU, TvmOptions())
    assert isinstance(compiled.module, KernelModule)
    stored = [(tensor.dtype, tensor.storage) for tensor in compiled.tensors]
    assert stored == [("int64", "int32"), ("bool", "int32")]
    assert "i8" not in compiled.module.kernels[0].source
    assert "i64" not in compiled.module.kernels[0].source


@pytest.mark.parametrize(
    ("target", "args", "dtype", "fits"),
    [
        (aten.add.Tensor, (Ref("i0"), 1), torch.int64, False),
        (aten.mul.Tensor, (Ref("i0"), Ref("i0")), torch.int64, False),
        (aten.bitwise_and.Scalar, (Ref("i0"), 255), torch.int64, True),
        (aten.bitwise_and.Scalar, (Ref("i0"), 2**40), torch.int64, False),
        (aten.clamp.default, (Ref("i0"), 0, 9), torch.int64, True),
        (aten.floor_divide.Scalar, (Ref("i0"), 3), torch.int64, True),
        (aten.floor_divide.Scalar, (Ref("i0"), -1), torch.int64, False),
        (aten.clamp.default, (Ref("i0"), 2**31), torch.int64, False),
        (aten.transpose.int, (Ref("i0"), 0, 1), torch.int64, True),
        (aten.sum.default, (Ref("i0"),), torch.bool, True),
        (aten.sum.default, (Ref("i0"),), torch.int64, False),
        (aten._to_copy.default, (Ref("i0"),), torch.int32, True),  # noqa: SLF001
        (aten._to_copy.default, (Ref("i0"),), torch.float32, False),  # noqa: SLF001
    ],
    ids=str,
)
def test_int64_results_are_taken_where_32_bits_hold_them(
    target: Any, args: tuple[Any, ...], dtype: torch.dtype, fits: bool
) -> None:
    given = torch.zeros(3, 4, dtype=dtype)
    values = [given if isinstance(entry, Ref) else entry for entry in args]
    kwargs = {"dtype": torch.int64} if target is aten._to_copy.default else {}  # noqa: SLF001
    result = TensorSpec.of(target(*values, **kwargs))
    graph = Graph(
        (GraphInput("i0", TensorSpec.of(given)),), (call("n0", target, args, result, **kwargs),), (Ref("n0"),)
    )
    if fits:
        assert compile_graph(graph, WEBGPU, TvmOptions()).outputs
    else:
        with pytest.raises(UnsupportedError, match="may not fit the 32 bits"):
            compile_graph(graph, WEBGPU, TvmOptions())
    assert compile_graph(graph, OPENCL, TvmOptions()).outputs


def test_refusals_name_the_reason() -> None:
    x = spec(3)
    random = call("n0", aten.rand_like.default, (Ref("i0"),), x)
    strided = call("n0", aten.as_strided.default, (Ref("i0"), (3,), (1,)), x)
    missing = call("n0", aten.lgamma.default, (Ref("i0"),), x)
    complexes = call("n0", aten.mul.Tensor, (Ref("i0"), 1j), spec(3, dtype=torch.complex64))
    assert "random" in str(supports(random, OPENCL))
    assert "strides" in str(supports(strided, OPENCL))
    assert "complex64" in str(supports(complexes, OPENCL))
    assert supports(call("n0", aten.relu.default, (Ref("i0"),), x), OPENCL) is None
    graph = Graph((GraphInput("i0", x),), (missing,), (Ref("n0"),))
    with pytest.raises(UnsupportedError, match="lgamma"):
        compile_graph(graph, OPENCL, TvmOptions())
    with pytest.raises(UnsupportedError, match="host"):
        compile_graph(graph, DeviceInfo("host", "cpu", "", ""), TvmOptions())


def test_the_table_of_operators_is_what_the_adapter_takes() -> None:
    pytest.importorskip("tvm")
    from tapestry.backends.tvm.adapter.importer import Importer
    from tapestry.backends.tvm.leaves import LEAVES
    from tapestry.backends.tvm.targets import TARGETS

    assert {name for name in LEAVES if not Importer(TARGETS["opencl"]).takes_named(name)} == set()


def test_a_mask_as_index_has_no_static_shape() -> None:
    graph = Graph(
        (GraphInput("i0", spec(3)), GraphInput("i1", spec(3, dtype=torch.bool))),
        (call("n0", aten.index.Tensor, (Ref("i0"), (Ref("i1"),)), spec(2)),),
        (Ref("n0"),),
    )
    with pytest.raises(UnsupportedError, match="mask"):
        compile_graph(graph, OPENCL, TvmOptions())


def test_the_backend_says_what_it_is() -> None:
    backend = Tvm()
    assert backend.availability().ready
    assert backend.options()[0] == TvmOptions()
    assert torch.__version__ in backend.fingerprint()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(TvmOptions()), type=TvmOptions) == TvmOptions()
