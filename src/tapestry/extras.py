"""Which extra of the distribution brings which package: what a missing package's message says to install."""

from __future__ import annotations

from tapestry.errors import EnvironmentProblem

_EXTRAS = {
    "torch": "bringup",
    "networkx": "bringup",
    "tvm": "tvm",
    "pyopencl": "opencl",
    "wgpu": "webgpu",
    "onnxruntime": "onnxruntime",
    "onnx": "onnxruntime",
    "onnxscript": "onnxruntime",
    "openvino": "openvino",
    "nncf": "openvino",
    "executorch": "executorch",
    "transformers": "hf",
    "expecttest": "schema",
    "scipy": "schema",
    "jinja2": "report",
    "websockets": "remote",
    "ortools": "place",
    "psutil": "place",
    "threadpoolctl": "place",
}


def missing(error: ModuleNotFoundError, what: str) -> EnvironmentProblem | None:
    """The problem, with its install line, when the module that is missing is one that an extra brings."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return None
    return EnvironmentProblem(f"{what} needs {error.name}, which is not installed: pip install 'tapestry-ml[{extra}]'")
