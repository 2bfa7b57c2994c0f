"""Precision, threads and calibration: offered by what the processor has, set explicitly, part of every key."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from support.host_bench import HostBench, encoder, ready
from tapestry.backends.base import Backend
from tapestry.backends.cache import CompileCache
from tapestry.backends.compiler import Compiler
from tapestry.backends.host import calibration, options, packages, threads
from tapestry.backends.host.declare import Body
from tapestry.backends.registry import get_backend
from tapestry.errors import FormatError, UnsupportedError, UsageError
from tapestry.placement.placement import option_values, read_options
from tapestry.program.capture import capture
from tapestry.program.inputs import as_input_sets
from tapestry.program.program import tensor_bytes
from tapestry.program.region import region_of

pytestmark = pytest.mark.slow

NAMES = ("onnxruntime", "openvino", "executorch", "inductor")


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_float32_and_options_survive_a_placement(name: str) -> None:
    backend = get_backend(name)
    first = backend.options()[0]
    assert isinstance(first, options.HostOptions)
    assert first.precision == "float32"
    for entry in backend.options():
        assert read_options(backend, option_values(entry)) == entry


def test_a_precision_is_offered_only_where_the_processor_has_it(host: HostBench) -> None:
    assert options.offered(frozenset(), ("float32", "bfloat16", "int8")) == ("float32",)
    assert options.offered(frozenset({"amx_bf16"}), ("float32", "bfloat16", "float16")) == ("float32", "bfloat16")
    bare = msgspec.structs.replace(host.device().info, features=frozenset())
    with pytest.raises(UnsupportedError, match="bfloat16 needs a processor with one of amx_bf16, avx512_bf16, bf16"):
        options.check_options(options.HostOptions("bfloat16"), options.HostOptions, bare)


def test_the_budget_is_the_variable_or_the_processors_left_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5})
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    assert threads.thread_budget() == 3
    monkeypatch.setenv(threads.VARIABLE, "7")
    assert options.HostOptions().threads == 7
    monkeypatch.setenv(threads.VARIABLE, "none")
    with pytest.raises(UsageError, match="expected 1 or more, got 'none'"):
        threads.thread_budget()


def test_versions_options_processor_and_threads_are_in_the_key(
    host: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = get_backend("onnxruntime")
    model, args = encoder()
    program = capture(model, args)
    graph, info = region_of(program, program.placeable).graph, host.device().info
    base = options.HostOptions(threads=2)
    keys = {
        host.compiler.key(backend, graph, info, entry)
        for entry in (base, options.HostOptions(threads=1), options.HostOptions("int8", 2))
    }
    keys.add(host.compiler.key(backend, graph, msgspec.structs.replace(info, features=frozenset({"none"})), base))
    monkeypatch.setattr(packages, "package_version", lambda name: "0.0.1")
    keys.add(host.compiler.key(backend, graph, info, base))
    assert len(keys) == 5


def test_a_damaged_cache_entry_is_compiled_again(
    tmp_path: Path, request: pytest.FixtureRequest, host: HostBench
) -> None:
    backend = ready("openvino", request.config)
    program = capture(torch.nn.ReLU(), (torch.randn(3),))
    graph, info = region_of(program, program.placeable).graph, host.device().info
    with Compiler(CompileCache(tmp_path)) as compiler:
        first = compiler.compile(backend, graph, info, backend.options()[0])
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-7])
    cache = CompileCache(tmp_path)
    with Compiler(cache) as compiler:
        again = compiler.compile(backend, graph, info, backend.options()[0])
    assert (cache.hits, cache.misses) == (0, 1)
    assert first.outputs == again.outputs


def _backend(name: str, request: pytest.FixtureRequest) -> Backend:
    return ready(name, request.config)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_lower_precision_is_less_exact_and_not_by_much(
    name: str, host: HostBench, request: pytest.FixtureRequest
) -> None:
    """Rounding to 8 bits (bfloat16) or to 1/127 of a range (int8) at each of two products, against float32's 24."""
    backend = _backend(name, request)
    model, args = encoder()
    program = capture(model, args)
    region = region_of(program, program.placeable)
    name_of = calibration.store(calibration.activations(region, as_input_sets([args])))
    want = model(*args)[0]
    for entry in backend.options():
        assert isinstance(entry, options.HostOptions)
        variants = [entry]
        if entry.precision == "int8":
            variants.append(msgspec.structs.replace(entry, calibration=name_of))
        for chosen in variants:
            got = host.build(program, backend, chosen)(*args)[0]
            error = float((got - want).abs().max() / want.abs().max())
            if chosen.precision == "float32":
                assert error < 1e-5
            else:
                assert 1e-5 < error < 0.1, chosen


def test_calibration_is_kept_by_content_and_fits_its_region(tmp_path: Path) -> None:
    model, args = encoder()
    program = capture(model, args)
    region = region_of(program, program.placeable)
    name = calibration.store(calibration.activations(region, as_input_sets([args, args])), tmp_path)
    body = Body(region.graph)
    samples = calibration.read(name, body, tmp_path)
    assert len(samples) == 2
    assert {len(data) for data in samples[0]} == {8 * 8, 8 * 32 * 4}
    other = Body(region_of(program, program.placeable[-1:]).graph)
    with pytest.raises(UsageError, match="expects"):
        calibration.read(name, other, tmp_path)
    with pytest.raises(UsageError, match="there is no calibration"):
        calibration.read("../" + name, body, tmp_path)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FormatError, match="damaged"):
        calibration.read(name, body, tmp_path)


def test_each_of_many_regions_finds_its_own_samples(tmp_path: Path) -> None:
    model, args = encoder()
    program = capture(model, args)
    regions = [region_of(program, (node,)) for node in program.placeable]
    inputs = as_input_sets([args])
    samples = {calibration.region_digest(entry.graph): calibration.activations(entry, inputs) for entry in regions[1:]}
    name = calibration.store_regions(samples, tmp_path)
    for entry in regions[1:]:
        found = calibration.read(name, Body(entry.graph), tmp_path)
        want = samples[calibration.region_digest(entry.graph)]
        assert found == tuple(tuple(bytes(tensor_bytes(tensor)) for tensor in sample) for sample in want)
    with pytest.raises(UnsupportedError, match=f"only of {len(samples)} others"):
        calibration.read(name, Body(regions[0].graph), tmp_path)
    with pytest.raises(UsageError, match="got none"):
        calibration.store_regions({"region": []}, tmp_path)
