"""Device functions to source text, with what TVM's code generators get wrong in it put right.

Not here: how the functions come about (lower.py).
"""

from __future__ import annotations

import json
import re
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tapestry.backends.tvm.adapter import wgsl
from tapestry.backends.tvm.adapter.rounds import check_rounds
from tapestry.backends.tvm.plan import Kernel
from tapestry.backends.tvm.targets import DeviceTarget
from tapestry.errors import CompileError
from tapestry.runtime.device import Limits


def kernels_of(
    functions: dict[Any, Any], tvm_target: Any, target: DeviceTarget, limits: Limits
) -> tuple[tuple[Kernel, ...], str]:
    """The kernels by name, and their common source text (empty when each has its own).

    UnsupportedError for a kernel that the device would not run to its end.
    """
    make = tvm.get_global_func(f"target.build.{target.kind}")
    kernels: list[Kernel] = []
    texts: list[str] = []
    for variable, function in sorted(functions.items(), key=lambda entry: entry[0].name_hint):
        check_rounds(str(variable.name_hint), function, limits.max_loop_iterations)
        made = make(tvm.IRModule({variable: function}), tvm_target)
        text = _mended(made.inspect_source(""), function, target)
        name, count = str(variable.name_hint), sum(_is_buffer(parameter) for parameter in function.params)
        if target.one_entry:
            kernels.append(Kernel(name, _access(made.inspect_source("func_info"), name, count), text))
        else:
            kernels.append(Kernel(name, "x" * count))
            texts.append(text)
    return tuple(kernels), "".join(texts)


def _is_buffer(parameter: Any) -> bool:
    return type(parameter.ty).__name__ in {"BufferType", "PointerType"}


def _access(info: str, name: str, count: int) -> str:
    """The access letters from TVM's own description of a WGSL kernel: a tag ``paramWriteAccess:[1,0,…]``."""
    for tag in json.loads(info)[name]["launch_param_tags"]:
        title, _, flags = str(tag).partition(":")
        if title == "paramWriteAccess":
            return "".join("x" if flag else "r" for flag in json.loads(flags)[:count])
    raise CompileError(f"TVM does not say which buffers {name} writes")


#: Functions that TVM writes with C's suffix for single precision; OpenCL C and WGSL overload the plain names.
_SUFFIXED = re.compile(r"\b(tan|atan|asin|acos|sinh|cosh|asinh|acosh|atanh|atan2)f\(")
#: How TVM prints a floating-point number: seven digits, of the nine or seventeen that would give it back.
_PRINTED = re.compile(r"\b\d\.\d{6}e[+-]\d{2,3}")


def _mended(text: str, function: Any, target: DeviceTarget) -> str:
    exact = _constants(function)
    text = _PRINTED.sub(lambda found: exact.get(found[0], found[0]), text)
    if target.language in {"opencl", "wgsl"}:
        text = _SUFFIXED.sub(r"\1(", text)
    return wgsl.mended(text) if target.language == "wgsl" else text


def _constants(function: Any) -> dict[str, str]:
    """What TVM prints for each constant of the function → the digits that give it back exactly.

    Raises CompileError for two constants that TVM prints alike: which is which cannot be told from the text.
    """
    found: dict[str, tuple[float, int]] = {}

    def visit(node: Any) -> None:
        value = abs(float(node.value))
        printed = f"{value:e}"
        digits = 16 if str(node.ty.dtype) == "float64" else 8
        known, least = found.get(printed, (value, digits))
        if known != value:
            raise CompileError(f"two constants of a kernel, {known!r} and {value!r}, look alike in TVM's source")
        found[printed] = (value, max(digits, least))

    structural_walk(function.body, (tirx.FloatImm, visit))
    return {printed: f"{value:.{digits}e}" for printed, (value, digits) in found.items()}
