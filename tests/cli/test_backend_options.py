"""``--option``: options reach the backend; int8 is calibrated with a suite's activations; wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Tapestry
from support.host_bench import ready
from tapestry.cli.choices import backend_options
from tapestry.errors import UsageError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["precision"], "expected --option KEY=VALUE"),
        (["=int8"], "expected --option KEY=VALUE"),
        (["precision=int8", "precision=float32"], "given twice: 'int8' and 'float32'"),
        (["colour=red"], "no option 'colour': inductor has precision, threads, calibration"),
        (["precision=int7"], "Invalid enum value 'int7'"),
        (["threads=many"], "Expected `int`"),
        (["calibration=suite"], "give --option precision=int8 too"),
        (["precision=int8", "calibration=nowhere"], "expected a suite made by tapestry carve"),
    ],
)
def test_a_wrong_option_is_refused(given: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        backend_options("inductor", given)
    assert words in str(caught.value)


def test_each_backend_gets_the_options_that_it_has() -> None:
    assert backend_options("", []) == {}
    found = backend_options("eager,inductor", ["threads=3", "precision=bfloat16"])
    assert str(found["inductor"]) == "precision=bfloat16,threads=3,calibration="
    assert str(found["eager"]) == ""
    with pytest.raises(UsageError, match="name the backend too"):
        backend_options("", ["threads=3"])


def test_the_command_says_so(tapestry: Tapestry, tmp_path: Path) -> None:
    ended = tapestry("replay", tmp_path, "--to", "cpu", "--backend", "eager", "--option", "precision=int8")
    assert ended.code == 2
    assert "no option 'precision': eager has none" in " ".join(ended.err.split())


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tapestry.models.load import load_model
    from tapestry.program.capture import capture
    from tapestry.suite.carve import carve
    from tapestry.suite.store import save_suite

    loaded = load_model("zoo:convnet")
    call = loaded.inputs[0].calls[0]
    path = tmp_path_factory.mktemp("suites") / "convnet"
    save_suite(carve(capture(loaded.module, call.args, call.kwargs, name=loaded.name), loaded.inputs), path)
    return path


def wrong(tapestry: Tapestry, suite: Path, backend: str, *options: str) -> dict[str, float]:
    """The normalised squared error of each operator that is not as float32 wants it; the largest of its cases."""
    target = suite.with_name("result.json")
    arguments = [part for option in options for part in ("--option", option)]
    ended = tapestry("replay", suite, "--to", "cpu", "--backend", backend, "--json", target, *arguments)
    assert ended.code in {0, 1}, ended.err
    (device,) = json.loads(target.read_text())["devices"]
    found: dict[str, float] = {}
    for failure in device["failures"]:
        assert failure["verdict"] == "fail", failure["reason"]
        found[failure["op"]] = max(failure["error"]["nmse"], found.get(failure["op"], 0.0))
    return found


@pytest.mark.timeout(300)  # three replays
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_int8_is_calibrated_with_the_activations_of_a_suite(
    tapestry: Tapestry, suite: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    """Products and convolutions in 8 bits err by what 8 bits do.

    A rounding to 1/255 of the range R errs by R/255/sqrt(12) rms. With values of rms R/12 or more (six sigma to each
    side) at both operands that is 2 (12 / 255 / sqrt(12))^2 = 4e-4 of the square; a result that cancels has more.
    """
    ready(backend, request.config)
    reference = wrong(tapestry, suite, backend)  # what the runtime gets wrong anyway
    given = wrong(tapestry, suite, backend, "precision=int8", f"calibration={suite}")
    calibrated = {op: error for op, error in given.items() if op not in reference}
    products = {"aten.conv2d.default", "aten.linear.default"}
    assert products <= set(calibrated)
    assert all(1e-9 < error < 1e-2 for error in calibrated.values()), calibrated
    assert not products & set(reference)
    if backend == "onnxruntime":  # NNCF quantises pools as well; this one takes no convolutions without calibration
        assert set(calibrated) == products
        dynamic = set(wrong(tapestry, suite, backend, "precision=int8")) - set(reference)
        assert dynamic == {"aten.linear.default"}


def test_a_region_that_no_activations_were_stored_of_is_refused(
    tapestry: Tapestry, suite: Path, factories: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ready("onnxruntime", request.config)
    other = tmp_path / "other"
    assert tapestry("carve", f"{factories}:small", "-o", other).code == 0
    target = tmp_path / "result.json"
    ended = tapestry(
        "replay", other, "--to", "cpu", "--backend", "onnxruntime", "--json", target, "--no-variants",
        "--option", "precision=int8", "--option", f"calibration={suite}",
    )  # fmt: skip
    assert ended.code == 1
    (device,) = json.loads(target.read_text())["devices"]
    assert {failure["verdict"] for failure in device["failures"]} == {"unsupported"}
    assert all("has no activations of this region" in failure["reason"] for failure in device["failures"])
