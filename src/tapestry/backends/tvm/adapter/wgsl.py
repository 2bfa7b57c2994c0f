"""What TVM 0.27 writes as WGSL and WGSL does not allow, or does not promise the meaning of, put right in the text.

TVM's printer always puts brackets around comparisons and names a bool buffer's elements ``i8``: that is relied upon.
Not here: what is wrong for every language (source.py), and the order of arguments.
"""

from __future__ import annotations

import re

from tapestry.backends.tvm.adapter.wgsl_functions import functions_for
from tapestry.errors import CompileError

#: Where WGSL allows its own an absolute error only, or the specification's formula cancels near 0, or adapters differ
#: in special values.
_REPLACED = re.compile(r"\b(sinh|asinh|acosh|atanh|exp|exp2|log|log2|pow|tanh)\(")
_BOOLS = re.compile(r"var(?:<[^>]*>)?\s+(\w+)\s*:\s*array<i8\b")
_LEAST = re.compile(r"-2147483648i\b")
_INFINITY = re.compile(r"\binff\b")
#: float32's largest, whose nine digits are a little more than it: Chromium refuses them, and rounds these to it.
_LARGEST = re.compile(r"\b3\.40282347e\+38f\b")
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
    text = _LARGEST.sub("3.4028234e+38f", text)
    text = _NAN.sub("tapestry_nan()", text)
    text = _with_named_tests(text)
    text = _REPLACED.sub(r"tapestry_\1(", text)
    return functions_for(text) + text


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
