"""What a bundle never says: paths of the machine it was made on, and secrets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.suite.repro.clean import LONGEST, cleaned

HOME = "/" + "home/someone"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (f"{HOME}/models/net.py:12 (layer.0)", "net.py:12 (layer.0)"),
        (f'File "{HOME}/x/y.py", line 3', 'File "y.py", line 3'),
        ("~/models/net.py:3", "net.py:3"),
        ("../secret/net.py:3", "net.py:3"),
        (r"C:\Users\someone\net.py:3", "net.py:3"),
        ("file://" + HOME + "/net.py", "net.py"),
        ("ws://host:9/opencl:0?token=abc", "ws://host:9/opencl:0?token removed"),
        ("expected 1/2, got 3/4 at [0, 1]", "expected 1/2, got 3/4 at [0, 1]"),
        ("src/net.py:4 (a.b)", "src/net.py:4 (a.b)"),
        ("", ""),
    ],
)
def test_texts(text: str, want: str) -> None:
    assert cleaned(text) == want


@given(st.text(max_size=30), st.text("abc/", max_size=20), st.text(max_size=30))
def test_no_home_survives(before: str, path: str, after: str) -> None:
    assert HOME not in cleaned(f"{before} {HOME}/{path} {after}")


def test_endless_texts_are_cut() -> None:
    assert len(cleaned("x" * 10_000)) == LONGEST + 1
