"""What a runtime does not take becomes a reason: the exporter's words, or the loader's."""

from __future__ import annotations

import msgspec
import pytest
import torch

from support.host_bench import HostBench, encoder
from tapestry.backends.base import Backend
from tapestry.backends.region_constants import RegionConstants
from tapestry.errors import DeviceError, TapestryError, UnsupportedError
from tapestry.placement.constants import ProgramConstants
from tapestry.program.capture import capture
from tapestry.program.region import region_of
from tapestry.runtime.bind import BoundRegion
from tapestry.runtime.resident import Resident

pytestmark = pytest.mark.slow


class Untranslated(torch.nn.Module):
    """An operator that no exporter has a translation for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(x)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"], indirect=True)
def test_the_converter_speaks_for_itself(host: HostBench, backend: Backend) -> None:
    program = capture(Untranslated(), (torch.eye(3),))
    with pytest.raises(UnsupportedError, match=r"refuses it: .*linalg_eigh"):
        host.build(program, backend)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"], indirect=True)
def test_complex_numbers_are_refused_without_asking(host: HostBench, backend: Backend) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x)

    with pytest.raises(UnsupportedError, match="complex64"):
        host.build(capture(model, (torch.ones(3),)), backend)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"], indirect=True)
@pytest.mark.parametrize("worker", [False, True], ids=["in-process", "worker"])
def test_what_compiles_and_does_not_load_is_refused_when_it_is_bound(
    host: HostBench, backend: Backend, worker: bool
) -> None:
    model, args = encoder()
    program = capture(model, args)
    region = region_of(program, program.placeable)
    device = host.device(worker)
    compiled = host.compiler.compile(backend, region.graph, device.info, backend.options()[0])
    payload = msgspec.msgpack.decode(compiled.module.payload)
    for part in ("model", "xml"):
        if part in payload:
            payload[part] = b"no model at all"
    broken = msgspec.structs.replace(
        compiled, module=msgspec.structs.replace(compiled.module, payload=msgspec.msgpack.encode(payload))
    )
    constants = RegionConstants(ProgramConstants(program), region.inputs, broken)
    with pytest.raises(TapestryError, match="does not load the model") as caught:
        BoundRegion(broken, Resident(device), constants.bytes_of)
    assert isinstance(caught.value, DeviceError | UnsupportedError)
    assert device.stats().buffers == 0, "nothing is left behind"


class Bounded(torch.nn.Module):
    """Integers and a bound that is none, so that the result is float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, max=0.5)


class Half(torch.nn.Module):
    """A sum that is float16, as its terms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1)


@pytest.mark.parametrize(
    ("backend", "model", "value", "words"),
    [
        ("openvino", Bounded(), torch.arange(4), "makes result 0 i64, expected float32"),
        ("onnxruntime", Half(), torch.ones(2, 3, dtype=torch.float16), "makes result 0 float32, expected float16"),
    ],
    indirect=["backend"],
)
def test_a_result_of_another_type_than_the_program_has_is_refused(
    host: HostBench, backend: Backend, model: torch.nn.Module, value: torch.Tensor, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        host.build(capture(model, (value,)), backend)


@pytest.mark.parametrize("backend", ["onnxruntime"], indirect=True)
def test_an_operator_that_onnx_lacks_for_a_type_is_unsupported(host: HostBench, backend: Backend) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 2)

    with pytest.raises(UnsupportedError, match=r"'tensor\(int32\)' of input parameter"):
        host.build(capture(model, (torch.arange(16, dtype=torch.int32).view(1, 1, 4, 4),)), backend)
