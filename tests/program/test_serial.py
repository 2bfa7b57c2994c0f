"""Stored graphs: every kind of argument round trips, equal graphs give equal bytes, and garbage is a FormatError."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tapestry.errors import FormatError
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.program.serial import (
    decode_argument,
    decode_spec,
    dtype_name,
    dtype_named,
    dumps,
    encode_argument,
    encode_spec,
    loads,
    overload_name,
    overload_named,
)

aten = torch.ops.aten
SPEC = TensorSpec((2, 3), (3, 1), torch.float32)


def alike(one: object, other: object) -> bool:
    """Equal by type and value, NaN and the sign of zero included."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and repr(one) == repr(other)


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=True, allow_infinity=True),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.builds(Ref, st.text("abc.#:1", min_size=1), st.integers(0, 9)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.complex64, torch.uint16]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda:1"), torch.device("meta"), torch.device("mps")]),
    st.sampled_from([torch.strided, torch.contiguous_format, torch.channels_last, torch.preserve_format]),
)
arguments = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


@settings(derandomize=True, deadline=None)
@given(arguments)
def test_arguments_round_trip(value: Argument) -> None:
    stored = msgspec.json.encode(encode_argument(value), order="deterministic")
    assert alike(decode_argument(msgspec.json.decode(stored)), value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 5e-324, 2**63, -(2**63), 2**70, 1e16, 1.0, 1])
def test_numbers_at_the_edges(value: float) -> None:
    assert alike(decode_argument(msgspec.json.decode(msgspec.json.encode(encode_argument(value)))), value)


def test_lists_become_tuples() -> None:
    assert decode_argument(encode_argument([1, [2, [None, True]]])) == (1, (2, (None, True)))


@pytest.mark.parametrize("value", [object(), {1: 2}, {1}, b"x", torch.ones(1), slice(1), aten.add.Tensor])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(FormatError):
        encode_argument(value)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"ref": ["a", 0], "float": "nan"},
        {"ref": ["a"]},
        {"ref": ["a", -1]},
        {"ref": ["a", True]},
        {"ref": [1, 0]},
        {"float": "1.0"},
        {"float": 1.0},
        {"float": "__import__('os')"},
        {"complex": [1.0]},
        {"complex": ["1", 2.0]},
        {"complex": [1, None]},
        {"dtype": "float31"},
        {"dtype": "nn"},
        {"dtype": 3},
        {"device": "cpu:x"},
        {"device": "/etc/passwd"},
        {"device": 0},
        {"layout": "sparse_coo"},
        {"memory_format": "strided"},
        {"py": "1+1"},
    ],
)
def test_stored_arguments_that_nobody_wrote(stored: dict) -> None:
    with pytest.raises(FormatError):
        decode_argument(stored)


def test_dtypes_and_specs() -> None:
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        assert dtype_named(dtype_name(dtype)) is dtype
    for spec in (SPEC, TensorSpec((), (), torch.bool), TensorSpec((0, 2), (0, 1), torch.int8), None):
        assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize(
    "stored",
    [
        1, [], ["float32"], ["float32", [1]], ["float32", [1], []], ["float32", [-1], [1]], ["float32", [1.0], [1]],
        ["float32", [True], [1]], ["x", [1], [1]], ["float32", [2**63], [1]], ["float32", "ab", "cd"],
    ],
)  # fmt: skip
def test_stored_specs_that_nobody_wrote(stored: object) -> None:
    with pytest.raises(FormatError):
        decode_spec(stored)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name",
    [
        "", "aten", "aten.add", "aten.add.Nothing", "aten.nothing.default", "nothing.add.Tensor", "aten.add.__class__",
        "aten.add.overloads", "__class__.mro.x", "load_library.x.y", "higher_order.cond.default", "os.system.default",
        "aten.add.Tensor.more", "aten. add.Tensor", "torch.ops.aten", "classes.a.b", "aten._dir.x",
    ],
)  # fmt: skip
def test_only_operators_are_found_by_name(name: str) -> None:
    with pytest.raises(FormatError):
        overload_named(name)


def test_operators_round_trip() -> None:
    for target in (aten.add.Tensor, aten.linear.default, aten.split.Tensor, aten.full.default):
        assert overload_named(overload_name(target)) is target


# -- whole graphs


def example() -> Graph:
    nan_filled = Call(
        "n2",
        aten.full.default,
        ((2, 3), math.nan),
        (("device", torch.device("cpu")), ("dtype", torch.float32), ("memory_format", torch.channels_last)),
        (SPEC,),
    )
    split = Call("n0", aten.split.Tensor, (Ref("i0"), 1), (), (SPEC, None), is_tuple=True)
    add = Call("n1", aten.add.Tensor, (Ref("n0", 1), Ref("i1")), (("alpha", math.inf),), (SPEC,))
    inputs = (GraphInput("i0", SPEC), GraphInput("i1", TensorSpec((), (), torch.int64), constant=True))
    return Graph(inputs, (split, add, nan_filled), (Ref("n1"), Ref("i0"), Ref("n2")))


def test_graphs_round_trip() -> None:
    again = loads(dumps(example()))
    assert dumps(again) == dumps(example())
    assert repr(again) == repr(example())  # NaN is not equal to itself


def test_the_order_of_keywords_does_not_count() -> None:
    call = Call("n0", aten.full.default, ((1,), 1.0), (("dtype", torch.float32), ("pin_memory", False)), (SPEC,))
    turned = Call("n0", aten.full.default, ((1,), 1.0), tuple(reversed(call.kwargs)), (SPEC,))
    assert dumps(Graph((), (call,), ())) == dumps(Graph((), (turned,), ()))


def stored(**changes: object) -> bytes:
    return json.dumps({**json.loads(dumps(example())), **changes}).encode()


CALL = ["n0", "aten.relu.default", [{"ref": ["i0", 0]}], {}, [["float32", [1], [1]]], False]
INPUT = ["i0", ["float32", [1], [1]], False]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b"\x80\x04K\x01.",  # a pickle
        stored(inputs=[["i0", None, False]]),
        stored(inputs=[INPUT, INPUT], calls=[], outputs=[]),
        stored(inputs=[], calls=[CALL], outputs=[]),
        stored(inputs=[INPUT], calls=[CALL, CALL], outputs=[]),
        stored(inputs=[INPUT], calls=[["i0", *CALL[1:]]], outputs=[]),
        stored(inputs=[INPUT], calls=[CALL], outputs=[["n0", 1]]),
        stored(inputs=[INPUT], calls=[CALL], outputs=[["n0", -1]]),
        stored(inputs=[INPUT], calls=[CALL], outputs=[["n7", 0]]),
        stored(inputs=[INPUT], calls=[["n0", "aten.relu.default", [{"ref": ["n0", 0]}], {}, [], False]], outputs=[]),
        stored(inputs=[INPUT], calls=[["n0", "os.system.default", ["true"], {}, [], False]], outputs=[]),
        b'{"inputs":[],"outputs":[],"calls":[["n0","aten.relu.default",' + b"[" * 900 + b"]" * 900 + b",{},[],false]]}",
    ],
)
def test_graphs_that_nobody_wrote(data: bytes) -> None:
    with pytest.raises(FormatError):
        loads(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=8,
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.data())
def test_changed_graphs_load_or_are_refused(data: st.DataObject) -> None:
    """Any value anywhere in a stored graph replaced by another: a FormatError, or a graph that is closed."""
    document = json.loads(dumps(example()))
    place: object = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # pyright: ignore
        key = data.draw(st.sampled_from(keys))
        inner = place[key]  # pyright: ignore
        if not isinstance(inner, list | dict) or not inner or data.draw(st.booleans()):
            place[key] = data.draw(json_values)  # pyright: ignore
            break
        place = inner
    try:
        graph = loads(json.dumps(document).encode())
    except FormatError:
        return
    assert loads(dumps(graph)).outputs == graph.outputs


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 600), st.integers(0, 255))
def test_bytes_are_never_more_than_refused(garbage: bytes, place: int, byte: int) -> None:
    data = bytearray(dumps(example()))
    data[place % len(data)] = byte
    for candidate in (garbage, bytes(data), bytes(data[:place])):
        try:
            loads(candidate)
        except FormatError:
            continue
