"""Elementwise functions of float32 that TVM has no code for, and WGSL no built-in.

erfc and erfinv reach the accuracy that docs/numerics.md asks of careful implementations (16 and 32 ulp), hypot 4 ulp;
copysign is exact.
"""

from __future__ import annotations

from math import ceil

from tapestry.backends.kernels.declare import Dispatch, kernel
from tapestry.backends.kernels.webgpu.grid import ENTRY, GROUP, PLACE, SPECIAL, groups_for
from tapestry.backends.rules import MatchView, all_of, any_, dtypes, op, same_shape

#: The rational functions of FreeBSD's s_erff.c (Sun Microsystems, 1993) in three ranges. exp(−x²) is taken in two
#: factors, with x cut to its upper bits so that its square is exact.
ERF = """
fn power_of_two(n : i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }
fn exp_near(x : f32) -> f32 {  // WGSL allows its own exp an error that grows with |x|
  if (x < -104.0) { return 0.0; }
  let n = round(x * 1.44269504);
  let rest = fma(-n, 1.42860677e-6, fma(-n, 0.693145752, x));  // ln 2 in two parts, the first of few bits
  let one = i32(n) / 2;
  return exp(rest) * power_of_two(one) * power_of_two(i32(n) - one);
}
fn erf_small(x : f32) -> f32 {  // |x| < 0.84375
  let z = x * x;
  let r = 0.12837916 + z * (-0.32504211 + z * (-0.028481750 + z * (-0.0057702702 + z * -0.000023763017)));
  let s = 1.0 + z * (0.39791721 + z * (0.065022250 + z * (0.0050813062 + z * (0.00013249473 + z * -0.0000039602282))));
  return x + x * (r / s);
}
fn erfc_middle(x : f32) -> f32 {  // 0.84375 <= x < 1.25: 1 − 0.84506291 − P/Q
  let s = x - 1.0;
  let p = -0.0023621185 + s * (0.41485611 + s * (-0.37220788 + s * (0.31834662 + s * (-0.11089469
    + s * (0.035478305 + s * -0.0021663755)))));
  let q = 1.0 + s * (0.10642088 + s * (0.54039794 + s * (0.071828656 + s * (0.12617121
    + s * (0.013637083 + s * 0.011984500)))));
  return 0.15493709 - p / q;
}
fn erfc_tail(x : f32) -> f32 {  // x >= 1.25
  let s = 1.0 / (x * x);
  var r : f32;
  var d : f32;
  if (x < 2.857143) {
    r = -0.0098649440 + s * (-0.69385856 + s * (-10.558626 + s * (-62.375332 + s * (-162.39667
      + s * (-184.60509 + s * (-81.287437 + s * -9.8143293))))));
    d = 1.0 + s * (19.651272 + s * (137.65776 + s * (434.56588 + s * (645.38727 + s * (429.00814
      + s * (108.63500 + s * (6.5702496 + s * -0.060424414)))))));
  } else {
    r = -0.0098649429 + s * (-0.79928327 + s * (-17.757956 + s * (-160.63638 + s * (-637.56644
      + s * (-1025.0951 + s * -483.51919)))));
    d = 1.0 + s * (30.338060 + s * (325.79251 + s * (1536.7296 + s * (3199.8582 + s * (2553.0503
      + s * (474.52853 + s * -22.440952))))));
  }
  let z = bitcast<f32>(bitcast<u32>(x) & 0xffffe000u);
  return exp_near(-z * z - 0.5625) * exp((z - x) * (z + x) + r / d) / x;
}
fn erfc(x : f32) -> f32 {
  let a = abs(x);
  if (is_nan(x)) { return x; }
  if (a < 0.84375) { return 1.0 - erf_small(x); }
  var far : f32;
  if (a < 1.25) { far = erfc_middle(a); }
  else if (a < 11.0) { far = erfc_tail(a); }
  else { far = 0.0; }
  return select(far, 2.0 - far, x < 0.0);
}
"""

#: M. Giles, "Approximating the erfinv function" (GPU Computing Gems, 2010), single precision; then one Newton step on
#: erf, or on erfc where erf has no digits left.
_ERFINV = """
fn inverse_erf(y : f32) -> f32 {
  let a = abs(y);
  if (is_nan(y) || a > 1.0) { return not_a_number(); }
  if (a == 1.0) { return with_sign(infinity(), y); }
  var w = -log((1.0 - a) * (1.0 + a));
  var p : f32;
  if (w < 5.0) {
    w -= 2.5;
    p = 2.81022636e-08;
    p = fma(p, w, 3.43273939e-07);
    p = fma(p, w, -3.5233877e-06);
    p = fma(p, w, -4.39150654e-06);
    p = fma(p, w, 0.00021858087);
    p = fma(p, w, -0.00125372503);
    p = fma(p, w, -0.00417768164);
    p = fma(p, w, 0.246640727);
    p = fma(p, w, 1.50140941);
  } else {
    w = sqrt(w) - 3.0;
    p = -0.000200214257;
    p = fma(p, w, 0.000100950558);
    p = fma(p, w, 0.00134934322);
    p = fma(p, w, -0.00367342844);
    p = fma(p, w, 0.00573950773);
    p = fma(p, w, -0.0076224613);
    p = fma(p, w, 0.00943887047);
    p = fma(p, w, 1.00167406);
    p = fma(p, w, 2.83297682);
  }
  var x = p * a;
  var off : f32;
  if (x < 0.84375) { off = erf_small(x) - a; } else { off = (1.0 - a) - erfc(x); }
  x -= off * 0.886226925 * exp(x * x);
  return with_sign(x, y);
}
"""

#: The larger times sqrt(1 + (smaller / larger)²): no square leaves the range.
_HYPOT = """
fn hypotenuse(x : f32, y : f32) -> f32 {
  let a = abs(x);
  let b = abs(y);
  if (a == infinity() || b == infinity()) { return infinity(); }
  if (is_nan(x) || is_nan(y)) { return not_a_number(); }
  let larger = max(a, b);
  let ratio = min(a, b) / select(larger, 1.0, larger == 0.0);
  return larger * sqrt(fma(ratio, ratio, 1.0));
}
"""


def _unary(name: str, expression: str, before: str) -> None:
    @kernel(device="webgpu", pattern=op(f"aten.{name}.default", any_("x")), when=dtypes("float32"), name=name)
    def write(m: MatchView) -> Dispatch:
        return _dispatch(name, m.spec("x").numel, ("x",), expression, before)


def _binary(name: str, overload: str, expression: str, before: str) -> None:
    condition = all_of(dtypes("float32"), same_shape("x", "y"))

    @kernel(device="webgpu", pattern=op(f"aten.{name}.{overload}", any_("x"), any_("y")), when=condition, name=name)
    def write(m: MatchView) -> Dispatch:
        return _dispatch(name, m.spec("x").numel, ("x", "y"), expression, before)


def _dispatch(name: str, count: int, inputs: tuple[str, ...], expression: str, before: str) -> Dispatch:
    bindings = "\n".join(
        f"@group(0) @binding({place}) var<storage, read> {given}_ : array<f32>;" for place, given in enumerate(inputs)
    )
    values = " ".join(f"let {given} = {given}_[i];" for given in inputs)
    source = f"""{bindings}
@group(0) @binding({len(inputs)}) var<storage, read_write> out : array<f32>;
{SPECIAL}{before}
@compute @workgroup_size({GROUP})
fn each_{name}({ENTRY}) {{
  let i = ({PLACE}) * {GROUP}u + lane;
  if (i < COUNT) {{ {values} out[i] = {expression}; }}
}}
"""
    groups = groups_for(ceil(count / GROUP)) if count else (0, 1)
    return Dispatch(source, f"each_{name}", (*inputs, "out"), groups, (GROUP,), {"COUNT": count})


_unary("erfc", "erfc(x)", ERF)
_unary("erfinv", "inverse_erf(x)", ERF + _ERFINV)
_binary("hypot", "default", "hypotenuse(x, y)", _HYPOT)
_binary("copysign", "Tensor", "with_sign(x, y)", "")
