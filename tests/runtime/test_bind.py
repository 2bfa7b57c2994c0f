"""Planning and binding of compiled regions, on a mock device whose kernels are NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.mock_device import KERNELS, MockDevice, mock_module
from tapestry.errors import DeviceError, FormatError, UnsupportedError, UsageError
from tapestry.runtime.bind import BoundRegion, ConstantBytes, check_limits
from tapestry.runtime.device import Buffer, Call, CopyBuffer, DeviceInfo, DeviceStats, Launch, Limits
from tapestry.runtime.module import Artifact, Compiled, ConstantDecl, LaunchDecl, Scalar, TensorDecl
from tapestry.runtime.plan import Place, plan_region
from tapestry.runtime.resident import Resident

ONE = (1, 1, 1)


def vector(n: int = 4, alias: int = -1) -> TensorDecl:
    return TensorDecl((n,), "float32", "float32", alias)


def launch(kernel: str, *args: int | Scalar) -> LaunchDecl:
    return LaunchDecl(kernel, args, ONE, ONE)


def region(
    tensors: list[TensorDecl], inputs: list[int], outputs: list[int], *launches: LaunchDecl, **more: Any
) -> Compiled:
    return Compiled("mock", mock_module(), tuple(tensors), tuple(inputs), tuple(outputs), launches, **more)


def no_constants(index: int) -> ConstantBytes:
    raise AssertionError(f"there is no constant {index}")


def run(
    compiled: Compiled,
    *values: list[float],
    device: MockDevice | None = None,
    constants: Callable[[int], ConstantBytes] = no_constants,
) -> list[list[float]]:
    """Bind, run once and unbind; checks that nothing stays on the device."""
    device = device or MockDevice()
    bound = BoundRegion(compiled, Resident(device), constants)
    inputs: list[Buffer | None] = []
    for value in values:
        data = np.float32(value).tobytes()
        inputs.append(device.alloc(len(data)))
        device.write(inputs[-1], data)  # type: ignore[arg-type]
    inputs += [None] * (len(compiled.inputs) - len(values))
    outputs = [device.alloc(compiled.tensors[tensor].nbytes) for tensor in compiled.outputs]
    device.submit(bound.commands(inputs, outputs, "tag"))
    results = [np.frombuffer(device.read(buffer, buffer.nbytes), np.float32).tolist() for buffer in outputs]
    bound.close()
    bound.close()
    for buffer in [*inputs, *outputs]:
        if buffer is not None:
            device.free(buffer)
    assert device.stats() == DeviceStats()
    return results


def test_a_chain_runs_in_two_workspace_buffers() -> None:
    launches = [launch("scale", i, i + 1, Scalar("float32", 2)) for i in range(6)]
    compiled = region([vector() for _ in range(7)], [0], [6], *launches)
    assert plan_region(compiled).slots == (16, 16)
    assert run(compiled, [1, 2, 3, 4]) == [[64, 128, 192, 256]]


def test_a_slot_grows_for_a_later_larger_tensor() -> None:
    sizes = [1, 1, 1, 8, 8]
    launches = [
        launch("copy", 0, 1), launch("copy", 1, 2), launch("fill", 3, Scalar("float32", 5)), launch("copy", 3, 4)
    ]  # fmt: skip
    compiled = region([vector(n) for n in sizes], [0], [4, 2], *launches)
    assert plan_region(compiled).slots == (32,)
    assert run(compiled, [7]) == [[5] * 8, [7]]


def test_outputs_that_are_something_else_are_copied() -> None:
    tensors = [vector(), vector(), vector(4, alias=1), vector(4, alias=0), vector()]
    compiled = region(
        tensors, [0], [1, 2, 0, 3, 4], launch("scale", 0, 1, Scalar("float32", 3)),
        constants=(ConstantDecl(4, "prepared", 0),),
    )  # fmt: skip
    constant = ConstantBytes.of(np.float32([9, 8, 7, 6]).tobytes())
    got = run(compiled, [1, 2, 3, 4], constants=lambda _: constant)
    assert got == [[3, 6, 9, 12], [3, 6, 9, 12], [1, 2, 3, 4], [1, 2, 3, 4], [9, 8, 7, 6]]
    copies = plan_region(compiled).copies
    assert [(place.kind, index) for place, index in copies] == [
        ("output", 1),
        ("input", 2),
        ("input", 3),
        ("constant", 4),
    ]


def test_an_output_that_is_a_part_of_its_base_keeps_the_base_alive() -> None:
    """The base is larger than the output's buffer, so it lives in a workspace that no later tensor may take."""
    tensors = [vector(4), vector(4), vector(2, alias=1), vector(4), vector(4)]
    launches = [launch("scale", 0, 1, Scalar("float32", 2)), launch("copy", 0, 3), launch("add", 3, 3, 4)]
    compiled = region(tensors, [0], [2, 4], *launches)
    assert plan_region(compiled).slots == (16, 16)
    assert run(compiled, [1, 2, 3, 4]) == [[2, 4], [2, 4, 6, 8]]


def test_constant_inputs_need_no_buffer_of_the_caller() -> None:
    compiled = region(
        [vector(), vector(), vector()], [0, 1, -1], [2], launch("add", 0, 1, 2),
        constants=(ConstantDecl(1, "input", 1),),
    )  # fmt: skip
    constant = ConstantBytes.of(np.float32([10, 20, 30, 40]).tobytes())
    assert run(compiled, [1, 2, 3, 4], constants=lambda _: constant) == [[11, 22, 33, 44]]


def test_a_restart_brings_module_constants_and_workspace_back() -> None:
    compiled = region(
        [vector(), vector(), vector(), vector()], [0], [3], launch("add", 0, 1, 2), launch("copy", 2, 3),
        constants=(ConstantDecl(1, "prepared", 0),),
    )  # fmt: skip
    device = MockDevice()
    data = np.float32([1, 1, 1, 1]).tobytes()
    bound = BoundRegion(compiled, Resident(device), lambda _: ConstantBytes.of(data))
    results = []
    for _ in range(3):
        source, target = device.alloc(16), device.alloc(16)
        device.write(source, data)
        for _ in range(2):
            device.submit(bound.commands([source], [target]))
        results.append(np.frombuffer(device.read(target, 16), np.float32).tolist())
        device.restart()
    assert results == [[2, 2, 2, 2]] * 3
    bound.close()
    assert device.stats() == DeviceStats()


def test_two_regions_share_module_and_weights() -> None:
    compiled = region(
        [vector(), vector(), vector()], [0], [2], launch("add", 0, 1, 2), constants=(ConstantDecl(1, "prepared", 0),)
    )
    device = MockDevice()
    resident = Resident(device)
    constant = ConstantBytes.of(bytes(16))
    first, second = (BoundRegion(compiled, resident, lambda _: constant) for _ in range(2))
    assert device.stats() == DeviceStats(1, 16, 1)
    assert device.loads == 1
    first.close()
    assert device.stats() == DeviceStats(1, 16, 1)
    second.close()
    assert device.stats() == DeviceStats()
    with pytest.raises(UsageError, match="closed"):
        second.commands([], [])


def test_a_binding_that_fails_leaves_nothing() -> None:
    launches = [launch("copy", 0, 1), launch("copy", 1, 2), launch("copy", 2, 3)]
    compiled = region([vector() for _ in range(4)], [0], [3], *launches)
    device = MockDevice(memory_bytes=20)
    with pytest.raises(DeviceError, match="out of memory"):
        BoundRegion(compiled, Resident(device), no_constants)
    assert device.stats() == DeviceStats()
    short = region([vector()], [], [0], constants=(ConstantDecl(0, "prepared", 0),))
    with pytest.raises(FormatError, match="has 4 bytes, its tensor declares 16"):
        BoundRegion(short, Resident(device), lambda _: ConstantBytes.of(b"1234"))
    assert device.stats() == DeviceStats()


def test_an_artifact_is_one_call() -> None:
    tensors = [vector(), vector(), vector(), vector(4, alias=2)]
    compiled = Compiled("mock", Artifact("mock:add", b""), tuple(tensors), (0, -1, 1), (2, 3, 0))

    def add(inputs: list[memoryview], outputs: list[memoryview]) -> None:
        a, b = (np.frombuffer(view, np.float32) for view in inputs)
        np.frombuffer(outputs[0], np.float32)[:] = a + b
        assert len(outputs) == 1

    device = MockDevice(programs={"add": add})
    bound = BoundRegion(compiled, Resident(device), no_constants)
    a, b, *outputs = (device.alloc(16) for _ in range(5))
    device.write(a, np.float32([1, 2, 3, 4]).tobytes())
    device.write(b, np.float32([1, 1, 1, 1]).tobytes())
    commands = bound.commands([a, None, b], outputs, "t")
    assert [type(command) for command in commands] == [Call, CopyBuffer, CopyBuffer]
    device.submit(commands)
    got = [np.frombuffer(device.read(buffer, 16), np.float32).tolist() for buffer in outputs]
    assert got == [[2, 3, 4, 5], [2, 3, 4, 5], [1, 2, 3, 4]]


def test_commands_carry_the_tag_and_are_made_once_per_buffers() -> None:
    compiled = region([vector(), vector()], [0], [1], launch("copy", 0, 1))
    device = MockDevice()
    bound = BoundRegion(compiled, Resident(device), no_constants)
    a, b, c = (device.alloc(16) for _ in range(3))
    (first,) = bound.commands([a], [b], "n7")
    assert isinstance(first, Launch)
    assert (first.tag, first.args) == ("n7", (a, b))
    assert bound.commands([a], [b], "n7")[0] is first
    (other,) = bound.commands([a], [c], "n7")
    assert isinstance(other, Launch)
    assert other.args == (a, c)


def test_buffers_are_checked() -> None:
    compiled = region([vector(), vector(), vector()], [0], [1, 2], launch("copy", 0, 1), launch("copy", 1, 2))
    device = MockDevice()
    bound = BoundRegion(compiled, Resident(device), no_constants)
    a, b, c, small = device.alloc(16), device.alloc(16), device.alloc(16), device.alloc(15)
    wrong: list[tuple[list[Buffer | None], list[Buffer], str]] = [
        ([None], [b, c], "input 0 was given no buffer"),
        ([small], [b, c], "needs 16 bytes, its buffer has 15"),
        ([a], [b, small], "output 1 needs 16 bytes"),
        ([a], [b], "expected 1 inputs and 2 outputs"),
        ([a], [b, b], "two outputs were given one buffer"),
        ([a], [a, b], "output 0 was given the buffer of input 0"),
    ]
    for inputs, outputs, says in wrong:
        with pytest.raises(UsageError, match=says):
            bound.commands(inputs, outputs)


def test_an_output_that_is_its_input_may_share_the_buffer() -> None:
    compiled = region([vector(), vector()], [0], [0, 1], launch("copy", 0, 1))
    device = MockDevice()
    bound = BoundRegion(compiled, Resident(device), no_constants)
    a, b = device.alloc(16), device.alloc(16)
    assert [type(command) for command in bound.commands([a], [a, b])] == [Launch]


@pytest.mark.parametrize(
    ("compiled", "says"),
    [
        (region([vector(), vector()], [0], [1]), "nothing writes"),
        (region([vector(), vector(), vector()], [0], [2], launch("add", 0, 1, 2)), "which nothing has written"),
        (region([vector()], [0], [0], launch("fill", 0, Scalar("float32", 1))), "comes from outside"),
        (region([vector(), vector()], [0], [1], launch("copy", 0, 5)), "names tensor 5"),
        (region([vector(), vector()], [-2], [1], launch("copy", 0, 1)), "names tensor -2"),
        (region([vector(), vector()], [0], [1], launch("absent", 0, 1)), "absent"),
        (region([vector(), vector()], [0], [1], launch("copy", 0)), "takes 2 buffers, got 1"),
        (region([vector(4), vector(8, alias=0)], [0], [1]), "has 32 bytes"),
        (region([vector(4, alias=1), vector(4)], [1], [0]), "expected an earlier one"),
        (
            region([vector()], [], [0], constants=(ConstantDecl(0, "prepared", 0), ConstantDecl(0, "prepared", 1))),
            "already",
        ),
        (Compiled("m", Artifact("mock:x", b""), (vector(),), (), (0,), (launch("copy", 0, 0),)), "no launches"),
    ],
)
def test_regions_that_contradict_themselves_are_refused(compiled: Compiled, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        plan_region(compiled)


def test_limits_are_checked_without_a_device() -> None:
    limits = Limits(max_buffer_bytes=64, max_binding_bytes=32, max_bindings=2, max_invocations=64, max_grid=(9, 9, 9))
    info = DeviceInfo("mock", "mock:0", "", "", limits, frozenset({"float32", "int32"}))
    fine = region([vector(), vector()], [0], [1], launch("copy", 0, 1))
    check_limits(fine, info)
    half = TensorDecl((4,), "float16", "float16")
    cases = [
        (region([vector(), half], [0], [1], launch("copy", 0, 1)), "stored as float16"),
        (region([vector(17), vector()], [0], [1], launch("copy", 0, 1)), "68 bytes is over the limit of 64"),
        (region([vector(9), vector()], [0], [1], launch("copy", 0, 1)), "36 bytes, over the limit of 32"),
        (region([vector()] * 3, [0, 1], [2], launch("add", 0, 1, 2)), "3 buffers bound, over the limit of 2"),
        (region([vector()] * 2, [0], [1], LaunchDecl("copy", (0, 1), (10, 1, 1), ONE)), "10 workgroups along x"),
        (region([vector()] * 2, [0], [1], LaunchDecl("copy", (0, 1), ONE, (65, 1, 1))), "65 invocations"),
        (region([vector()] * 2, [0], [1], launch("scale", 0, 1, Scalar("float64", 1))), "no float64 for a scalar"),
    ]
    for compiled, says in cases:
        with pytest.raises(UnsupportedError, match=says):
            check_limits(compiled, info)
    with pytest.raises(UnsupportedError):
        BoundRegion(cases[0][0], Resident(MockDevice(dtypes=info.dtypes)), no_constants)


@st.composite
def random_regions(draw: st.DrawFn) -> Compiled:
    """Any graph of copies, sums and multiples over vectors of one length, with aliases, constants and repeats."""
    inputs = draw(st.integers(1, 3))
    constants = draw(st.integers(0, 2))
    tensors = [vector() for _ in range(inputs + constants)]
    launches: list[LaunchDecl] = []
    for _ in range(draw(st.integers(0, 12))):
        ready = st.integers(0, len(tensors) - 1)
        kernel = draw(st.sampled_from(["copy", "add", "scale", "alias"]))
        if kernel == "alias":
            tensors.append(vector(4, alias=draw(ready)))
            continue
        sources = [draw(ready) for _ in range(2 if kernel == "add" else 1)]
        scalars = [Scalar("float32", draw(st.sampled_from([2.0, -1.0])))] if kernel == "scale" else []
        tensors.append(vector())
        launches.append(launch(kernel, *sources, len(tensors) - 1, *scalars))
    outputs = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=5))
    decls = tuple(ConstantDecl(inputs + index, "prepared", index) for index in range(constants))
    return region(tensors, list(range(inputs)), outputs, *launches, constants=decls)


def evaluate(compiled: Compiled, values: list[np.ndarray]) -> list[list[float]]:
    """The region with a buffer of its own for every tensor: what any plan must give."""
    memory: list[np.ndarray] = []
    known = iter(values)
    outside = {*compiled.inputs, *(constant.tensor for constant in compiled.constants)}
    for index, tensor in enumerate(compiled.tensors):
        if tensor.alias >= 0:
            memory.append(memory[tensor.alias])
        else:
            memory.append(next(known).copy() if index in outside else np.zeros(4, np.float32))
    for step in compiled.launches:
        args = [memory[arg].data if isinstance(arg, int) else arg.value for arg in step.args]
        KERNELS[step.kernel][1](args, ONE, ONE)  # type: ignore[arg-type]
    return [memory[tensor].tolist() for tensor in compiled.outputs]


@given(random_regions())
def test_no_plan_changes_a_result(compiled: Compiled) -> None:
    count = len(compiled.inputs) + len(compiled.constants)
    values = [np.float32([1, 10, 100, 1000]) * (index + 1) for index in range(count)]
    contents = [ConstantBytes.of(value.tobytes()) for value in values[len(compiled.inputs) :]]
    inputs = [value.tolist() for value in values[: len(compiled.inputs)]]
    assert run(compiled, *inputs, constants=lambda index: contents[index]) == evaluate(compiled, values)


def test_places_name_their_kind() -> None:
    compiled = region([vector(), vector(), vector()], [0], [2], launch("copy", 0, 1), launch("copy", 1, 2))
    assert plan_region(compiled).places == (Place("input", 0), Place("workspace", 0), Place("output", 0))
    assert plan_region(compiled).workspace_bytes == 16


def updating() -> Compiled:
    """One launch that adds a vector to what the output holds already: input 0, changed in place."""
    return region([vector(), vector(), vector()], [0, 1], [2], launch("add", 2, 1, 2), updates=((0, 0),))


def test_an_output_changed_in_place_begins_as_its_input() -> None:
    assert run(updating(), [1, 2, 3, 4], [10, 10, 10, 10]) == [[11, 12, 13, 14]]


def test_in_one_buffer_nothing_is_copied() -> None:
    device = MockDevice()
    bound = BoundRegion(updating(), Resident(device), no_constants)
    state, other = device.alloc(16), device.alloc(16)
    device.write(state, np.float32([1, 2, 3, 4]).tobytes())
    device.write(other, np.float32([10, 10, 10, 10]).tobytes())
    commands = bound.commands([state, other], [state])
    assert not any(isinstance(command, CopyBuffer) for command in commands)
    device.submit(commands)
    device.submit(bound.commands([state, other], [state]))
    assert np.frombuffer(device.read(state, 16), np.float32).tolist() == [21, 22, 23, 24]


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        (((1, 0),), "names an output or input that the region has not"),
        (((0, 2),), "names an output or input that the region has not"),
        (((0, 1),), "has another size or is not read"),
    ],
)
def test_updates_that_make_no_sense(updates: tuple[tuple[int, int], ...], words: str) -> None:
    compiled = region([vector(), vector(2), vector()], [0, 1], [2], launch("add", 2, 1, 2), updates=updates)
    with pytest.raises(FormatError, match=words):
        plan_region(compiled)
