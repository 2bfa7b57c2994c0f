"""What TVM 0.27 writes as WGSL and WGSL does not allow, or does not promise the meaning of, put right in the text.

TVM's printer always puts brackets around comparisons and names a bool buffer's elements ``i8``: that is relied upon.
Not here: what is wrong for every language (source.py), and the order of arguments.
"""

from __future__ import annotations

import re

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
    """``(x != x)``, with the same text on both sides, by name."""
    pieces: list[str] = []
    done, at = 0, text.find(_DIFFERS)
    while at >= 0:
        left, right = _opening(text, at - 1), _closing(text, at + len(_DIFFERS))
        operand = text[left + 1 : at]
        if left >= done and operand == text[at + len(_DIFFERS) : right]:
            pieces += [text[done:left], f"tapestry_isnan({operand})"]
            done = right + 1
        at = text.find(_DIFFERS, at + 1)
    return "".join([*pieces, text[done:]])


def _opening(text: str, at: int) -> int:
    """The bracket that is open at a place, or -1."""
    depth = 0
    while at >= 0:
        if text[at] in ")]":
            depth += 1
        elif text[at] in "([":
            if not depth:
                return at
            depth -= 1
        at -= 1
    return -1


def _closing(text: str, at: int) -> int:
    """The bracket that closes what is open at a place, or the end of the text."""
    depth = 0
    while at < len(text):
        if text[at] in "([":
            depth += 1
        elif text[at] in ")]":
            if not depth:
                return at
            depth -= 1
        at += 1
    return at
