"""Elementwise functions of float32 that TVM has no code for and OpenCL has built in, and the inverse error function.

Accuracy is that of OpenCL's built-ins (full profile: erfc 16 ulp, hypot 4 ulp, copysign exact). ``lgamma`` is not
here: OpenCL states no bound for it.
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.rules import MatchView, all_of, any_, dtypes, op, same_shape

_GROUP = 64

#: M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2010), single precision; then one Newton step on
#: erf, or on erfc where erf has no digits left, which brings it from 7 ulp to about 2.
_ERFINV = """
float inverse_erf(float y) {
    float a = fabs(y);
    if (!(a < 1.0f)) return a == 1.0f ? copysign(INFINITY, y) : NAN;
    float w = -log((1.0f - y) * (1.0f + y)), p;
    if (w < 5.0f) {
        w -= 2.5f;
        p = 2.81022636e-08f;
        p = fma(p, w, 3.43273939e-07f);
        p = fma(p, w, -3.5233877e-06f);
        p = fma(p, w, -4.39150654e-06f);
        p = fma(p, w, 0.00021858087f);
        p = fma(p, w, -0.00125372503f);
        p = fma(p, w, -0.00417768164f);
        p = fma(p, w, 0.246640727f);
        p = fma(p, w, 1.50140941f);
    } else {
        w = sqrt(w) - 3.0f;
        p = -0.000200214257f;
        p = fma(p, w, 0.000100950558f);
        p = fma(p, w, 0.00134934322f);
        p = fma(p, w, -0.00367342844f);
        p = fma(p, w, 0.00573950773f);
        p = fma(p, w, -0.0076224613f);
        p = fma(p, w, 0.00943887047f);
        p = fma(p, w, 1.00167406f);
        p = fma(p, w, 2.83297682f);
    }
    float x = p * a;
    float off = a < 0.5f ? erf(x) - a : (1.0f - a) - erfc(x);
    x -= off * 0.886226925f * exp(x * x);
    return copysign(x, y);
}
"""


def _unary(name: str, expression: str, before: str = "") -> None:
    @kernel(device="opencl", pattern=op(f"aten.{name}.default", any_("x")), when=dtypes("float32"), name=name)
    def write(m: MatchView) -> Dispatch:
        return _dispatch(name, m.spec("x").numel, ("x",), expression, before)


def _binary(name: str, overload: str, expression: str) -> None:
    condition = all_of(dtypes("float32"), same_shape("x", "y"))

    @kernel(device="opencl", pattern=op(f"aten.{name}.{overload}", any_("x"), any_("y")), when=condition, name=name)
    def write(m: MatchView) -> Dispatch:
        return _dispatch(name, m.spec("x").numel, ("x", "y"), expression, "")


def _dispatch(name: str, count: int, inputs: tuple[str, ...], expression: str, before: str) -> Dispatch:
    arguments = ", ".join(f"__global const float* {given}_" for given in inputs)
    values = " ".join(f"float {given} = {given}_[i];" for given in inputs)
    source = f"""{before}
__kernel void each_{name}({arguments}, __global float* out) {{
    size_t i = get_global_id(0);
    if (i < COUNT) {{ {values} out[i] = {expression}; }}
}}
"""
    groups = (max(1, ceil(count / _GROUP)),)
    return Dispatch(source, f"each_{name}", (*inputs, "out"), groups, (_GROUP,), {"COUNT": count})


_unary("erfc", "erfc(x)")
_unary("erfinv", "inverse_erf(x)", _ERFINV)
_binary("hypot", "default", "hypot(x, y)")
_binary("copysign", "Tensor", "copysign(x, y)")
