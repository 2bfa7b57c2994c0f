"""What TVM 0.27 writes as WGSL and WGSL does not allow, or does not promise the meaning of, put right in the text.

TVM's printer always puts brackets around comparisons and names a bool buffer's elements ``i8``: that is relied upon.
Not here: what is wrong for every language (source.py), and the order of arguments.
"""

from __future__ import annotations

import re

from tapestry.errors import CompileError

#: A literal's value would be an error of the shader; hidden in a variable, its bits are nobody's business. The test
#: for NaN looks at bits because implementations may assume that there is none (WGSL, section 15.7.2).
_HELPERS = {
    "tapestry_inf": """
var<private> tapestry_inf_bits : u32 = 0x7f800000u;
fn tapestry_inf() -> f32 { return bitcast<f32>(tapestry_inf_bits); }
""",
    "tapestry_nan": """
var<private> tapestry_nan_bits : u32 = 0x7fc00000u;
fn tapestry_nan() -> f32 { return bitcast<f32>(tapestry_nan_bits); }
""",
    "tapestry_isnan": """
fn tapestry_isnan(x : f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
""",
}

_BOOLS = re.compile(r"var(?:<[^>]*>)?\s+(\w+)\s*:\s*array<i8\b")
_LEAST = re.compile(r"-2147483648i\b")
_INFINITY = re.compile(r"\binff\b")
_NAN = re.compile(r"\bnanf\b")
_DIFFERS = " != "


def mended(text: str) -> str:
    """The kernel's text as WGSL takes it."""
    for name in _BOOLS.findall(text):
        # TVM reads such an element as bool(…), and stores a bool.
        text = re.sub(rf"^(\s*{name}\[.*\] = )(.*);$", r"\1i32(\2);", text, flags=re.MULTILINE)
    text = re.sub(r"\bi8\b", "i32", text)
    text = _LEAST.sub("i32(-2147483648)", text)
    text = _INFINITY.sub("tapestry_inf()", text)
    text = _NAN.sub("tapestry_nan()", text)
    text = _with_named_tests(text)
    needed = [source for name, source in _HELPERS.items() if f"{name}(" in text]
    return "".join(needed) + text


def _with_named_tests(text: str) -> str:
    """``(x != x)``, with the same text on both sides, by name; any other ``(x != y)`` as ``(!(x == y))``.

    naga compiles ``!=`` of floats to SPIR-V's ordered comparison, which is false beside NaN, where WGSL says true.
    """
    at = text.find(_DIFFERS)
    while at >= 0:
        left, right = _bracket(text, at - 1, -1), _bracket(text, at + len(_DIFFERS), 1)
        one, other = text[left + 1 : at], text[at + len(_DIFFERS) : right]
        named = f"tapestry_isnan({one})" if one == other else f"(!({one} == {other}))"
        text = text[:left] + named + text[right + 1 :]
        at = text.find(_DIFFERS, left)
    return text


def _bracket(text: str, at: int, step: int) -> int:
    """The bracket around a comparison, looked for in one direction. CompileError where it has none of its own."""
    inner, outer = (")]", "([") if step < 0 else ("([", ")]")
    depth = 0
    while 0 <= at < len(text):
        if text[at] in inner:
            depth += 1
        elif text[at] in outer and depth:
            depth -= 1
        elif text[at] in outer:
            return at
        elif text[at] in ",;{}" and not depth:
            break
        at += step
    raise CompileError("TVM writes a comparison without brackets around it, which cannot be mended for WGSL")
