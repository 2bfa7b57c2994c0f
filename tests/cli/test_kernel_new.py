"""``tapestry kernel new``: a file that loads and says what there is to do, and clear words where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Tapestry
from tapestry.backends.kernels import declare

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_kernels_left(tmp_path: Path) -> Iterator[None]:
    yield
    for path in tmp_path.glob("*.py"):
        declare.forget(str(path.resolve()))


@pytest.fixture
def suite(tapestry: Tapestry, factories: str, tmp_path: Path) -> Path:
    ended = tapestry("carve", f"{factories}:small", "-o", tmp_path / "suite", "--variants", 2, "--parts", 0)
    assert ended.code == 0, ended.err
    return tmp_path / "suite"


def test_wrong_requests(tapestry: Tapestry, suite: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for arguments, words in (
        (("gelo", "--device", "opencl", "--suite", suite), "did you mean aten.gelu"),
        (("silu", "--device", "opencl", "--suite", suite), "has no case of silu"),
        (("gelu", "--device", "cpu", "--suite", suite), "hand-written kernels (opencl, webgpu), got 'cpu'"),
        (("gelu", "--device", "opencl", "--suite", suite, "--model", "zoo:bert"), "got both"),
        (("gelu", "--device", "opencl", "--suite", tmp_path / "none"), "none"),
        (("add", "--device", "opencl"), "expected one of aten.add.Tensor, aten.add.Scalar"),
    ):
        ended = tapestry("kernel", "new", *arguments, "-o", path)
        assert ended.code == 2, (arguments, ended.err)
        assert words in " ".join(ended.err.split()), (arguments, ended.err)
        assert not path.exists()
    path.write_text("# mine\n")
    ended = tapestry("kernel", "new", "gelu", "--device", "opencl", "--suite", suite, "-o", path)
    assert ended.code == 2
    assert "is there already" in ended.err
    assert path.read_text() == "# mine\n"
    assert tapestry("kernel", "new", "gelu", "--device", "opencl", "--suite", suite, "-o", path, "--force").code == 0
    assert "def gelu(" in path.read_text()


def test_cases_of_a_model_and_of_the_schema(tapestry: Tapestry, factories: str, tmp_path: Path) -> None:
    path = tmp_path / "gelu.py"
    ended = tapestry("kernel", "new", "gelu", "--device", "webgpu", "--model", f"{factories}:small", "-o", path)
    assert ended.code == 0, ended.err
    assert "it must pass 1 cases and 0 variants" in ended.out
    assert "self float32 [3, 16]" in path.read_text()
    path = tmp_path / "relu.py"
    ended = tapestry("kernel", "new", "relu", "--device", "opencl", "-o", path)
    assert ended.code == 0, ended.err
    assert "tapestry carve --schema aten.relu.default -o suite" in " ".join(path.read_text().split())


@pytest.mark.opencl
def test_from_the_beginning_to_a_kernel_that_passes(tapestry: Tapestry, suite: Path, tmp_path: Path) -> None:
    path = tmp_path / "gelu.py"
    assert tapestry("kernel", "new", "gelu", "--device", "opencl", "--suite", suite, "-o", path).code == 0
    replay = ("replay", suite, "--to", "opencl", "--kernels", path, "--journal", tmp_path / "journal")
    ended = tapestry(*replay)
    # The compiler computes the operator meanwhile; that the kernel does not is said, and is no success.
    assert ended.code == 1, ended.out
    said = " ".join(ended.out.split())
    assert "error: aten.gelu.default by kernels, so that another backend is asked" in said
    assert "to do: write the body of the kernel below" in said

    text = re.sub(r"    raise NotImplementedError.*\n", "", path.read_text())
    path.write_text(text.replace("out_[i] = 0;", "out_[i] = 0.5f * self_[i] * erfc(-self_[i] * 0.70710678f);"))
    ended = tapestry(*replay)
    assert ended.code == 0, ended.out
    assert "kernels" in ended.out
