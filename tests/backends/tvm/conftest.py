"""A bench with the backend's compiler on each kind of device.

Not here: what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.region_bench import Bench, single_call
from tapestry.backends.tvm.compile import compile_graph
from tapestry.backends.tvm.options import TvmOptions
from tapestry.runtime.open import open_device, open_in_process

_DEVICES = [
    pytest.param("opencl:0", marks=[pytest.mark.opencl, pytest.mark.timeout(300)]),
    pytest.param("webgpu:0", marks=[pytest.mark.webgpu, pytest.mark.timeout(300)]),
    # Hundreds of kernels that SwiftShader takes seconds to compile: `make test-all`.
    pytest.param("browser", marks=[pytest.mark.browser, pytest.mark.thorough, pytest.mark.timeout(300)]),
]


@pytest.fixture(scope="session", params=_DEVICES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """One device of each kind; a test that uses it runs on all of them."""
    pytest.importorskip("tvm")
    device = open_device("browser") if request.param == "browser" else open_in_process(request.param)
    yield Bench(device, lambda graph, info, options: compile_graph(graph, info, options or TvmOptions()))
    device.close()


@pytest.fixture(scope="session")
def one_call() -> Any:
    return single_call
