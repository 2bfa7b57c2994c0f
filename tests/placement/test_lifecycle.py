"""What an executable holds on a device, frees, and brings back after the device was lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from support.eager_device import Bench, EagerMockDevice, alone, whole
from support.mock_device import MockKernel, MockProgram
from tapestry.errors import DeviceError, DeviceLostError, UsageError
from tapestry.program.capture import capture
from tapestry.program.program import Program
from tapestry.runtime.device import Call, DeviceStats
from tapestry.runtime.module import Artifact, KernelModule


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(torch.nn.functional.gelu(self.first(x))) + x * self.calls


class FailingDevice(EagerMockDevice):
    """Fails at a call: with ``fail`` left at 0, the next one."""

    fail: int | None = None
    lose = False
    alloc_fails_after: int | None = None
    load_fails_after: int | None = None

    def _call(self, program: object, call: Call) -> None:
        if self.fail == 0:
            self.fail = None
            if self.lose:
                self._fail("abort", "call")
            raise DeviceError("mock: the call failed")
        if self.fail is not None:
            self.fail -= 1
        super()._call(program, call)  # type: ignore[arg-type]

    def _build(self, module: KernelModule | Artifact) -> dict[str, MockKernel] | MockProgram:
        if self.load_fails_after is not None:
            if self.load_fails_after == 0:
                raise DeviceError("mock: no more")
            self.load_fails_after -= 1
        return super()._build(module)

    def _create(self, nbytes: int) -> bytearray:
        if self.alloc_fails_after is not None:
            if self.alloc_fails_after == 0:
                raise DeviceError("mock: out of memory")
            self.alloc_fails_after -= 1
        return super()._create(nbytes)


@cache
def program() -> Program:
    return capture(Net(), (torch.ones(2, 4),), {})


@pytest.fixture
def made() -> Iterator[Bench]:
    entry = Bench(program(), FailingDevice())
    yield entry
    entry.close()


@pytest.fixture
def device(made: Bench) -> FailingDevice:
    assert isinstance(made.device, FailingDevice)
    return made.device


EMPTY = DeviceStats(0, 0, 0)


@pytest.mark.parametrize("cut", [whole, alone])
def test_close_frees_everything(made: Bench, device: FailingDevice, cut: Callable[..., object]) -> None:
    executable = made.build(cut)  # type: ignore[arg-type]
    executable(torch.ones(2, 4))
    assert device.stats() != EMPTY
    executable.close()
    executable.close()
    assert device.stats() == EMPTY
    with pytest.raises(UsageError, match="closed"):
        executable(torch.ones(2, 4))
    assert device.stats() == EMPTY


def test_fifty_placements_leak_nothing(made: Bench, device: FailingDevice) -> None:
    kept = made.build(whole)
    kept(torch.ones(2, 4))
    before = device.stats()
    for number in range(50):
        with made.build(alone if number % 2 else whole) as executable:
            executable(torch.ones(2, 4))
    assert device.stats() == before
    kept.close()
    assert device.stats() == EMPTY
    assert device.held_bytes == 0


def test_one_executable_does_not_disturb_another(made: Bench) -> None:
    x = torch.randn(2, 4)
    with made.build(whole) as one, made.build(whole) as other:
        first = one(x)
        assert torch.equal(other(x), first)
        one.close()
        assert not torch.equal(other(x), first)  # the counter has moved on
        other.reset()
        assert torch.equal(other(x), first)


@pytest.mark.parametrize("cut", [whole, alone])
def test_lost_in_the_middle_then_restarted_then_called_again(
    made: Bench, device: FailingDevice, cut: Callable[..., object]
) -> None:
    x = torch.randn(2, 4)
    with made.build(nothing_moved) as reference, made.build(cut) as executable:  # type: ignore[arg-type]
        assert torch.equal(executable(x), reference(x))
        device.fail, device.lose = len(executable.layout.bound_steps) // 2, True
        with pytest.raises(DeviceLostError):
            executable(x)
        with pytest.raises(DeviceLostError):
            executable(x)
        device.restart()
        if executable.layout.kept:  # what was on the device is gone with it, and is not made up
            with pytest.raises(DeviceError, match=r"buffer:calls was on mock:0, which was restarted.*reset\(\)"):
                executable(x)
            executable.reset()
            reference.reset()
        assert torch.equal(executable(x), reference(x))  # and the lost call has not counted
        assert torch.equal(executable(x), reference(x))
    assert device.stats() == EMPTY


def nothing_moved(program: object) -> dict[str, object]:
    return {}


def test_a_device_error_is_raised_and_the_next_call_works(made: Bench, device: FailingDevice) -> None:
    x = torch.randn(2, 4)
    with made.build(alone) as executable:
        want = executable(x)
        executable.reset()
        device.fail = 1
        with pytest.raises(DeviceError, match="the call failed"):
            executable(x)
        assert torch.equal(executable(x), want)
    assert device.stats() == EMPTY


def test_closing_after_the_device_is_lost(made: Bench, device: FailingDevice) -> None:
    executable = made.build(whole)
    device.fail, device.lose = 0, True
    with pytest.raises(DeviceLostError):
        executable(torch.ones(2, 4))
    device.restart()
    executable.close()
    assert device.stats() == EMPTY
    with made.build(whole) as fresh:
        fresh(torch.ones(2, 4))
    assert device.stats() == EMPTY


@pytest.mark.parametrize("room", range(12))
def test_out_of_memory_while_building_or_running_leaves_nothing(made: Bench, device: FailingDevice, room: int) -> None:
    device.alloc_fails_after = room
    with contextlib.suppress(DeviceError), made.build(alone) as executable:
        executable(torch.ones(2, 4))
    device.alloc_fails_after = None
    assert device.stats() == EMPTY
    with made.build(alone) as executable:
        executable(torch.ones(2, 4))
    assert device.stats() == EMPTY


def test_a_failed_build_leaves_nothing(made: Bench, device: FailingDevice) -> None:
    device.load_fails_after = 2
    with pytest.raises(DeviceError, match="no more"):
        made.build(alone)
    device.load_fails_after = None
    assert device.stats() == EMPTY
    with made.build(alone) as executable:
        executable(torch.ones(2, 4))
    assert device.stats() == EMPTY
