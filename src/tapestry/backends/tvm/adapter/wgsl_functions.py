"""Functions in WGSL that stand before TVM's kernels where they are used: special values, and what WGSL lacks or blurs.

Not here: what in TVM's text is replaced by them (wgsl.py).
"""

from __future__ import annotations

#: Name → what it needs of the others, and its text. A literal of an infinity is an error of the shader, its bits in a
#: variable are not. The test for NaN looks at bits because implementations may assume that there is none.
_FUNCTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "tapestry_inf": (
        (),
        """
var<private> tapestry_inf_bits : u32 = 0x7f800000u;
fn tapestry_inf() -> f32 { return bitcast<f32>(tapestry_inf_bits); }
""",
    ),
    "tapestry_nan": (
        (),
        """
var<private> tapestry_nan_bits : u32 = 0x7fc00000u;
fn tapestry_nan() -> f32 { return bitcast<f32>(tapestry_nan_bits); }
""",
    ),
    "tapestry_isnan": (
        (),
        """
fn tapestry_isnan(x : f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
""",
    ),
    # WGSL leaves open what exp, log and tanh give for special values, and adapters differ: SwiftShader (Chromium 156)
    # has an infinite exp(NaN), -88.03 for log(0), numbers for logarithms of negative ones, NaN for tanh(inf).
    "tapestry_exp": (
        ("tapestry_isnan",),
        """
fn tapestry_exp(x : f32) -> f32 { if (tapestry_isnan(x)) { return x; } return exp(x); }
""",
    ),
    "tapestry_exp2": (
        ("tapestry_isnan",),
        """
fn tapestry_exp2(x : f32) -> f32 { if (tapestry_isnan(x)) { return x; } return exp2(x); }
""",
    ),
    "tapestry_tanh": (
        ("tapestry_isnan",),
        """
fn tapestry_tanh(x : f32) -> f32 { if (tapestry_isnan(x)) { return x; } return tanh(clamp(x, -20.0, 20.0)); }
""",
    ),
    # C's special values (C23, F.10.4.4), and powers of negative numbers, which WGSL has none of.
    "tapestry_pow": (
        ("tapestry_inf", "tapestry_isnan", "tapestry_nan"),
        """
fn tapestry_pow(x : f32, y : f32) -> f32 {
  let a = abs(x);
  if (tapestry_isnan(x) || tapestry_isnan(y)) {
    return select(tapestry_nan(), 1.0, (bitcast<u32>(y) & 0x7fffffffu) == 0u || bitcast<u32>(x) == 0x3f800000u);
  }
  if (y == 0.0 || x == 1.0) { return 1.0; }
  let half = 0.5 * y;
  let odd = y == floor(y) && half != floor(half);
  if (x < 0.0 && y != floor(y) && a < tapestry_inf()) { return tapestry_nan(); }
  var found = 1.0;
  if (a == 0.0) { found = select(tapestry_inf(), 0.0, y > 0.0); }
  else if (a == tapestry_inf()) { found = select(0.0, tapestry_inf(), y > 0.0); }
  else if (a != 1.0) { found = pow(a, y); }
  return select(found, -found, odd && bitcast<u32>(x) >= 0x80000000u);
}
""",
    ),
    # The sign and zero by their bits: a comparison may take a subnormal number for zero.
    "tapestry_log_of": (
        ("tapestry_inf", "tapestry_isnan", "tapestry_nan"),
        """
fn tapestry_log_of(x : f32, found : f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (tapestry_isnan(x)) { return x; }
  if ((bits & 0x7fffffffu) == 0u) { return -tapestry_inf(); }
  if (bits > 0x80000000u) { return tapestry_nan(); }
  return found;
}
""",
    ),
    "tapestry_log": (
        ("tapestry_log_of",),
        """
fn tapestry_log(x : f32) -> f32 { return tapestry_log_of(x, log(x)); }
""",
    ),
    "tapestry_log2": (
        ("tapestry_log_of",),
        """
fn tapestry_log2(x : f32) -> f32 { return tapestry_log_of(x, log2(x)); }
""",
    ),
    # log(1 + t) for t >= 0: 2 artanh(t / (2 + t)) by its series below one half.
    "tapestry_log1p": (
        (),
        """
fn tapestry_log1p(t : f32) -> f32 {
  if (t >= 0.5) { return log(1.0 + t); }
  let r = t / (2.0 + t);
  let q = r * r;
  return 2.0 * r * (1.0 + q * (0.33333333 + q * (0.2 + q * (0.14285714 + q * (0.11111111 + q * 0.090909091)))));
}
""",
    ),
    # Its Taylor series below one; above, the exponentials, halved so that they leave the range with the result only.
    "tapestry_sinh": (
        ("tapestry_isnan",),
        """
fn tapestry_sinh(x : f32) -> f32 {
  let a = abs(x);
  if (tapestry_isnan(x)) { return x; }
  if (a < 1.0) {
    let q = x * x;
    return x + x * q * (0.16666667 + q * (0.0083333333 + q * (0.00019841270 + q * (2.7557319e-6 + q * 2.5052108e-8))));
  }
  let e = exp(0.5 * a);
  let s = 0.5 * e * e - 0.5 / e / e;
  return select(s, -s, x < 0.0);
}
""",
    ),
    "tapestry_asinh": (
        ("tapestry_isnan", "tapestry_log1p"),
        """
fn tapestry_asinh(x : f32) -> f32 {
  let a = abs(x);
  if (tapestry_isnan(x) || a == 0.0) { return x; }
  var s : f32;
  if (a > 1e9) { s = log(a) + 0.69314718; }
  else { s = tapestry_log1p(a + a * a / (1.0 + sqrt(a * a + 1.0))); }
  return select(s, -s, x < 0.0);
}
""",
    ),
    "tapestry_acosh": (
        ("tapestry_isnan", "tapestry_log1p", "tapestry_nan"),
        """
fn tapestry_acosh(x : f32) -> f32 {
  if (tapestry_isnan(x) || x < 1.0) { return tapestry_nan(); }
  if (x > 1e9) { return log(x) + 0.69314718; }
  let t = x - 1.0;
  return tapestry_log1p(t + sqrt(t * (t + 2.0)));
}
""",
    ),
    "tapestry_atanh": (
        ("tapestry_isnan", "tapestry_log1p", "tapestry_nan", "tapestry_inf"),
        """
fn tapestry_atanh(x : f32) -> f32 {
  let a = abs(x);
  if (tapestry_isnan(x) || a > 1.0) { return tapestry_nan(); }
  if (a == 0.0) { return x; }
  var s = tapestry_inf();
  if (a < 1.0) { s = 0.5 * tapestry_log1p(2.0 * a / (1.0 - a)); }
  return select(s, -s, x < 0.0);
}
""",
    ),
    # Exact: subtraction of shifted mantissas (musl's fmodf). WGSL's % goes by the rounded quotient.
    "fmodf": (
        ("tapestry_nan",),
        """
fn fmodf(x : f32, y : f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  var m = bitcast<u32>(x) & 0x7fffffffu;
  var d = bitcast<u32>(y) & 0x7fffffffu;
  if (d == 0u || m >= 0x7f800000u || d > 0x7f800000u) { return tapestry_nan(); }
  if (m < d) { return x; }
  var e = i32(m >> 23u);
  var f = i32(d >> 23u);
  if (e == 0) { let s = countLeadingZeros(m) - 8u; m <<= s; e = 1 - i32(s); } else { m = (m & 0x7fffffu) | 0x800000u; }
  if (f == 0) { let s = countLeadingZeros(d) - 8u; d <<= s; f = 1 - i32(s); } else { d = (d & 0x7fffffu) | 0x800000u; }
  for (; e > f; e--) {
    if (m >= d) { m -= d; }
    m <<= 1u;
  }
  if (m >= d) { m -= d; }
  if (m == 0u) { return bitcast<f32>(sign); }
  let up = countLeadingZeros(m) - 8u;
  m <<= up;
  e -= i32(up);
  if (e > 0) { m = (m & 0x7fffffu) | (u32(e) << 23u); } else { m >>= u32(1 - e); }
  return bitcast<f32>(m | sign);
}
""",
    ),
}


def functions_for(text: str) -> str:
    """The text of the functions that a kernel's text calls, and of those that they call."""
    waiting = [name for name in _FUNCTIONS if f"{name}(" in text]
    needed: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name not in needed:
            others, needed[name] = _FUNCTIONS[name]
            waiting += others
    return "".join(source for name, (_, source) in _FUNCTIONS.items() if name in needed)
