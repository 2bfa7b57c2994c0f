"""WGSL as OpenCL C: what a text does there, how 16-bit floats and booleans are stored, and what is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import pytest
import torch

from tapestry.backends.kernels.opencl.translate import TranslationError, translated
from tapestry.backends.transfer import from_storage, to_storage
from tapestry.program.graph import TensorSpec
from tapestry.runtime.device import Device, Launch
from tapestry.runtime.module import KernelDecl, KernelModule, TensorDecl
from tapestry.runtime.open import open_in_process


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = open_in_process("opencl:0")
    yield opened
    opened.close()


HEAD = """
@group(0) @binding(0) var<storage, read> x : array<f32>;
@group(0) @binding(1) var<storage, read_write> out : array<f32>;
"""
ENTRY = """
@compute @workgroup_size(4)
fn run(@builtin(workgroup_id) group : vec3u, @builtin(local_invocation_index) lane : u32) {
"""


def results(device: Device, source: str, x: torch.Tensor, count: int = 4) -> torch.Tensor:
    """What the kernel ``run`` of one group of four makes of x, in x's type."""
    name = str(x.dtype).removeprefix("torch.")
    storage = "float32" if x.dtype == torch.float32 else "uint8" if x.dtype == torch.bool else "uint16"
    kind = "float32" if x.dtype == torch.bool else name
    given = TensorDecl(tuple(x.shape), name, storage)
    made = TensorDecl((count,), kind, "float32" if storage == "uint8" else storage)
    text = translated(source, [name, kind], {"TWO": 2, "HALF": 0.5})
    loaded = device.load(KernelModule("opencl", text, (KernelDecl("run", "rw"),), ""))
    buffers = (device.alloc(given.nbytes), device.alloc(made.nbytes))
    try:
        device.write(buffers[0], to_storage(x, given, "x"))
        device.write(buffers[1], bytes(made.nbytes))
        device.submit([Launch(loaded, "run", buffers, (1, 1, 1), (4, 1, 1))])
        spec = TensorSpec.of(torch.empty(count, dtype=getattr(torch, kind)))
        return from_storage(device.read(buffers[1], made.nbytes), made, spec)
    finally:
        for buffer in buffers:
            device.free(buffer)
        device.unload(loaded)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param("out[lane] = 1.0 - x[lane] - 2.0 * 3.0;", [-5.0, -6.0, -7.0, -8.0], id="precedence"),
        pytest.param("out[lane] = f32(7u / 2u % 2u + (1u << 2u));", [5.0] * 4, id="whole numbers"),
        pytest.param("out[lane] = select(1.0, 2.0, x[lane] < 2.0);", [2.0, 2.0, 1.0, 1.0], id="select"),
        pytest.param("out[lane] = f32(TWO) * HALF;", [1.0] * 4, id="constants"),
        pytest.param("out[lane] = f32(-1i - 2);", [-3.0] * 4, id="negative numbers"),
        pytest.param("let half = x[lane]; var local = half; local += 1.0; out[lane] = local;", [1.0, 2.0, 3.0, 4.0],
                     id="names that OpenCL C reserves"),
        pytest.param("var sums = array<f32, 2>(x[lane], 5.0); var s = 0.0;"
                     "for (var i = 0u; i < 2u; i++) { s += sums[i]; } out[lane] = s;", [5.0, 6.0, 7.0, 8.0],
                     id="array"),
        pytest.param("if (lane == 0u) { out[lane] = 9.0; } else if (lane < 2u) { out[lane] = 8.0; } else "
                     "{ out[lane] = 7.0; }", [9.0, 8.0, 7.0, 7.0], id="else if"),
        pytest.param("let v = vec4f(1.0, 2.0, 3.0, 4.0); out[lane] = dot(v, vec4f(2.0)) + v[3];", [24.0] * 4,
                     id="vectors"),
        pytest.param("out[lane] = round(x[lane] + 0.5) + min(3.0, 4.0) + f32(max(1u, 2u)) + abs(-1.0);",
                     [6.0, 8.0, 8.0, 10.0], id="functions"),
        pytest.param("out[lane] = bitcast<f32>(0x3f800000u) + fma(x[lane], 2.0, 1.0);", [2.0, 4.0, 6.0, 8.0],
                     id="bits"),
    ],
)  # fmt: skip
def test_a_text_does_the_same(device: Device, body: str, wanted: list[float]) -> None:
    found = results(device, HEAD + ENTRY + body + "}", torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert found.tolist() == wanted


@pytest.mark.opencl
def test_functions_get_the_buffers_and_the_workgroup_memory_that_they_use(device: Device) -> None:
    source = f"""{HEAD}
var<workgroup> part : array<f32, 4>;
fn given(i : u32) -> f32 {{ return x[i]; }}
fn exp(i : u32) {{ part[i] = given(i) + 1.0; }}
fn keep(i : u32, value : f32) {{ if (i > 2u) {{ return; }} out[i] = value; }}
{ENTRY} exp(lane); workgroupBarrier(); keep(lane, part[3u - lane] + workgroupUniformLoad(&part[0])); }}"""
    found = results(device, source, torch.tensor([0.0, 10.0, 20.0, 30.0]))
    assert found.tolist() == [32.0, 22.0, 12.0, 0.0]


@pytest.mark.opencl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_short_floats_are_stored_as_their_bits(device: Device, dtype: torch.dtype) -> None:
    (nan,) = struct.unpack("<f", struct.pack("<I", 0x7F800001))
    x = torch.tensor([1.5, -math.inf, nan, 6e-5] * 2).to(dtype)
    source = HEAD.replace("x : array<f32>", "x : array<vec4f>") + ENTRY + "out[lane] = x[1][lane]; }"
    assert torch.equal(results(device, source, x).isnan(), x[:4].isnan())
    torch.testing.assert_close(results(device, source, x), x[:4], rtol=0, atol=0, equal_nan=True)
    eight = source.replace("vec4f", "vec8f").replace("x[1][lane]", "x[0][lane]")
    torch.testing.assert_close(results(device, eight, x), x[:4], rtol=0, atol=0, equal_nan=True)


@pytest.mark.opencl
def test_a_nan_whose_bits_do_not_fit_stays_one(device: Device) -> None:
    source = HEAD + ENTRY + "out[lane] = bitcast<f32>(0x7f800001u); }"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert results(device, source, torch.zeros(4, dtype=dtype)).isnan().all()


@pytest.mark.opencl
def test_booleans_are_stored_as_bytes(device: Device) -> None:
    source = HEAD.replace("x : array<f32>", "x : array<u32>") + ENTRY
    found = results(device, source + "out[lane] = f32(x[lane] + 1u); }", torch.tensor([True, False, True, True]))
    assert found.tolist() == [2.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("out[0] = later(1.0);", "later: no function", id="unknown function"),
        pytest.param("out[0] = y;", "y: no variable", id="unknown variable"),
        pytest.param("var y : f64;", "type f64: expected one of", id="unknown type"),
        pytest.param("let v = vec4f(1.0); out[0] = v[lane];", "a lane of", id="a lane of a variable"),
        pytest.param("out[0] += 1.0;", "expected an assignment", id="adding to an element of a buffer"),
        pytest.param("let y = 1.0", "expected ';'", id="no semicolon"),
        pytest.param("let y = 1.0 # 2.0;", "not a word of WGSL", id="not WGSL"),
        pytest.param("{ let y = 1.0; } out[0] = y;", "y: no variable", id="a variable of an inner block"),
    ],
)
def test_what_is_not_translated_is_refused(body: str, words: str) -> None:
    with pytest.raises(TranslationError, match=words):
        translated(HEAD + ENTRY + body + "}", ["float32", "float32"])
