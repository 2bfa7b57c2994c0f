"""The WebGPU device: memory, batches of commands in one encoder, timing.

Where a hung kernel may occur, use it in a worker: nothing can cancel a kernel in-process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tapestry.errors import DeviceError, DeviceLostError, UnsupportedError, UsageError
from tapestry.runtime.device import Call, Command, CopyBuffer, DeviceInfo, Launch
from tapestry.runtime.drivers.base import Driver
from tapestry.runtime.drivers.webgpu.adapters import (
    Opened,
    describe,
    forget,
    import_wgpu,
    open_device,
    pick,
    timestamp_period,
)
from tapestry.runtime.drivers.webgpu.kernels import BindGroups, Kernel, Memory, build, forget_groups, message
from tapestry.runtime.drivers.webgpu.probe import loop_limit
from tapestry.runtime.module import Artifact, KernelModule
from tapestry.runtime.names import DeviceName

T = TypeVar("T")

#: WebGPU copies and writes whole words, and a vec4 must fit a binding of one.
WORD = 4
MIN_BYTES = 16
#: Bytes of the buffer through which reads go: it grows with what is read, and larger reads go in pieces.
STAGING_BYTES = 64 << 20
SMALLEST_STAGING = 64 << 10
#: Launches after which an encoder is handed over, so that the device begins while the rest is encoded.
BATCH = 2048


class WebGpuDriver(Driver[Memory, dict[str, Kernel]]):
    """One adapter with one device and its queue."""

    def __init__(self, name: DeviceName) -> None:
        super().__init__()
        self._wgpu: Any = import_wgpu()
        self._index = name.index
        self._adapter: Any = pick(self._wgpu, name.index)
        self._name = str(name)
        self._open()
        limit = loop_limit(self._wgpu, self._device)
        self._info = describe(self._wgpu, self._adapter, self._name, limit)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def close(self) -> None:
        if not self._closed:
            forget(self._opened)
        self._drop_work()
        super().close()

    def _open(self) -> None:
        self._opened: Opened = open_device(self._adapter, self._name)
        self._device: Any = self._opened.device
        self._queue: Any = self._opened.queue
        self._groups = BindGroups(self._wgpu, self._device)
        self._staging: Any = None
        self._timer: _Timer | None = None
        self._drop_work()
        usage = self._wgpu.BufferUsage
        self._usage = int(usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)
        self._fence = self._new_buffer(WORD, self._usage)

    def _drop_work(self) -> None:
        self._encoder: Any = None
        self._pass: Any = None
        self._pipeline: Any = None
        self._encoded = 0

    def _reopen(self) -> None:
        forget(self._opened)
        self._adapter = pick(self._wgpu, self._index)  # an adapter gives one device
        self._open()

    # Memory.

    def _create(self, nbytes: int) -> Memory:
        size = max(MIN_BYTES, _padded(nbytes))
        return Memory(self._new_buffer(size, self._usage), size)

    def _new_buffer(self, size: int, usage: int) -> Any:
        try:
            return self._device.create_buffer(size=size, usage=usage)
        except self._wgpu.GPUError as error:
            raise self._problem(f"a buffer of {size:,} bytes failed", error) from error

    def _destroy(self, memory: Memory) -> None:
        self._flush()
        forget_groups(memory)
        memory.buffer.destroy()  # WebGPU keeps it until submitted commands have finished

    def _upload(self, memory: Memory, data: memoryview, offset: int) -> None:
        self._flush()
        if offset % WORD or data.nbytes % WORD:
            data, offset = self._whole_words(memory, data, offset)
        self._guard("write", lambda: self._queue.write_buffer(memory.buffer, offset, data))

    def _whole_words(self, memory: Memory, data: memoryview, offset: int) -> tuple[memoryview, int]:
        """The data between what is in the first and the last word now."""
        start, end = offset // WORD * WORD, _padded(offset + data.nbytes)
        first = self._download(memory, WORD, start)
        last = self._download(memory, WORD, end - WORD)
        joined = first[: offset - start] + bytes(data) + last[WORD - (end - offset - data.nbytes) :]
        return memoryview(joined[: end - start]), start

    def _download(self, memory: Memory, nbytes: int, offset: int) -> bytes:
        start, end = offset // WORD * WORD, _padded(offset + nbytes)
        pieces = [
            self._read_words(memory, place, min(STAGING_BYTES, end - place))
            for place in range(start, end, STAGING_BYTES)
        ]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return data if (start, end) == (offset, offset + nbytes) else data[offset - start : offset - start + nbytes]

    def _read_words(self, memory: Memory, offset: int, nbytes: int) -> bytes:
        staging = self._staging_for(nbytes)
        self._end_pass()
        encoder = self._open_encoder()

        def read() -> bytes:
            encoder.copy_buffer_to_buffer(memory.buffer, offset, staging, 0, nbytes)
            self._submit()
            # The mode that does not encode a second, empty submission first: ours has just been submitted.
            staging.map_async("READ_NOSYNC", 0, nbytes).sync_wait()
            try:
                return bytes(staging.read_mapped(0, nbytes, copy=False))
            finally:
                staging.unmap()

        return self._guard("read", read)

    def _staging_for(self, nbytes: int) -> Any:
        if self._staging is None or self._staging.size < nbytes:
            usage = self._wgpu.BufferUsage
            size = max(SMALLEST_STAGING, 1 << (nbytes - 1).bit_length())
            self._staging = self._new_buffer(size, int(usage.COPY_DST | usage.MAP_READ))
        return self._staging

    # Programs.

    def _build(self, module: KernelModule | Artifact) -> dict[str, Kernel]:
        if isinstance(module, Artifact):
            raise UnsupportedError(f"{self._name} runs WGSL kernels, not artifacts of {module.loader}")
        if module.language != "wgsl":
            raise UnsupportedError(f"{self._name} compiles 'wgsl' sources, got {module.language!r}")
        self._require_present()
        return build(self._wgpu, self._device, module, self._info)

    # Commands.

    def _launch(self, program: dict[str, Kernel], launch: Launch) -> None:
        kernel = program[launch.kernel]
        if launch.block != kernel.block:
            raise UsageError(
                f"kernel {launch.kernel} has workgroups of {kernel.block} in its source, the launch says {launch.block}"
            )
        try:
            group = self._groups.group(kernel, launch, self._memory)
            encoding = self._pass or self._open_pass(None)
            if self._pipeline is not kernel.pipeline:
                encoding.set_pipeline(kernel.pipeline)
                self._pipeline = kernel.pipeline
            encoding.set_bind_group(0, group)
            encoding.dispatch_workgroups(*launch.grid)
        except self._wgpu.GPUError as error:
            raise self._problem(f"kernel {launch.kernel}, grid {launch.grid}, block {launch.block}", error) from error
        self._encoded += 1
        if self._encoded >= BATCH and self._timer_idle():
            self._flush()

    def _call(self, program: dict[str, Kernel], call: Call) -> None:
        raise UnsupportedError(f"{self._name} runs kernels, not artifacts")  # unreachable: it loads none

    def _copy(self, source: Memory, target: Memory, copy: CopyBuffer) -> None:
        whole = not (copy.nbytes % WORD or copy.source_offset % WORD or copy.target_offset % WORD)
        if source is target or not whole:
            # WebGPU copies whole words, and none within one buffer: by way of the host.
            data = self._download(source, copy.nbytes, copy.source_offset)
            self._upload(target, memoryview(data), copy.target_offset)
            return
        self._end_pass()
        encoder = self._open_encoder()
        self._guard(
            "copy",
            lambda: encoder.copy_buffer_to_buffer(
                source.buffer, copy.source_offset, target.buffer, copy.target_offset, copy.nbytes
            ),
        )

    def _flush(self) -> None:
        if self._encoder is not None:
            self._guard("submit", self._submit)

    def _finish(self) -> None:
        """A read of four bytes: wgpu-py's own way of waiting for a queue is broken in 0.32."""
        self._read_words(Memory(self._fence, WORD), 0, WORD)

    def _open_encoder(self) -> Any:
        if self._encoder is None:
            self._require_present()
            self._encoder = self._guard("encode", self._device.create_command_encoder)
        return self._encoder

    def _open_pass(self, timestamps: dict[str, Any] | None) -> Any:
        encoder = self._open_encoder()
        given = {} if timestamps is None else {"timestamp_writes": timestamps}
        self._pass = encoder.begin_compute_pass(**given)
        self._pipeline = None
        return self._pass

    def _end_pass(self) -> None:
        if self._pass is not None:
            ended, self._pass = self._pass, None
            self._guard("encode", ended.end)

    def _submit(self) -> None:
        """Hand over what is encoded. An encoder is of no more use after an error."""
        encoder, open_pass = self._encoder, self._pass
        self._drop_work()
        if open_pass is not None:
            open_pass.end()
        self._queue.submit([encoder.finish()])

    # Timing.

    def _time_once(self, commands: Sequence[Command]) -> float:
        """Seconds between the pass's own timestamps where it is all launches, else by the host's clock."""
        launches = [command for command in commands if isinstance(command, Launch) and 0 not in command.grid]
        if len(launches) != len(commands) or "timestamps" not in self._info.features:
            return super()._time_once(commands)
        if self._timer is None:
            self._timer = _Timer(self._wgpu, self._device, self._queue)
        if not self._timer.period:
            return super()._time_once(commands)
        self._flush()
        self._timer.busy = True
        try:
            self._open_pass(self._timer.writes())
            for command in launches:
                self._start(command)
            self._end_pass()
            self._guard("time", lambda: self._timer_resolve(self._encoder))
            ticks = self._read_words(Memory(self._timer.results, 16), 0, 16)
        finally:
            self._timer.busy = False
        start, end = struct.unpack("<QQ", ticks)
        seconds = (end - start) * self._timer.period
        return seconds if seconds > 0 else super()._time_once(commands)

    def _timer_idle(self) -> bool:
        return self._timer is None or not self._timer.busy

    def _timer_resolve(self, encoder: Any) -> None:
        assert self._timer is not None, "only called while timing"
        encoder.resolve_query_set(self._timer.queries, 0, 2, self._timer.results, 0)

    # Errors.

    def _guard(self, what: str, action: Callable[[], T]) -> T:
        try:
            result = action()
        except (self._wgpu.GPUError, RuntimeError) as error:
            raise self._problem(f"{what} failed", error) from error
        self._require_present()
        return result

    def _problem(self, what: str, error: Exception) -> DeviceError:
        """DeviceLostError when the device is gone, else DeviceError, with wgpu's message."""
        text = message(error)
        if self._opened.lost or "device is lost" in text.lower() or "device lost" in text.lower():
            return DeviceLostError(f"{self._name} is lost ({self._opened.lost or text}); restart() opens it again")
        return DeviceError(f"{self._name}: {what}: {text}")

    def _require_present(self) -> None:
        if self._opened.lost:
            raise DeviceLostError(f"{self._name} is lost ({self._opened.lost}); restart() opens it again")


class _Timer:
    """Two timestamps on the device. ``period`` is seconds a tick, 0 where the library does not say."""

    def __init__(self, wgpu: Any, device: Any, queue: Any) -> None:
        usage = wgpu.BufferUsage
        self.queries = device.create_query_set(type="timestamp", count=2)
        self.results = device.create_buffer(size=16, usage=int(usage.QUERY_RESOLVE | usage.COPY_SRC))
        self.period = timestamp_period(queue)
        self.busy = False

    def writes(self) -> dict[str, Any]:
        return {"query_set": self.queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}


def _padded(nbytes: int) -> int:
    return -(-nbytes // WORD) * WORD


def open_webgpu(name: DeviceName) -> WebGpuDriver:
    """Opens ``webgpu:N``. EnvironmentProblem when wgpu or an adapter is missing, UsageError for an N too high."""
    return WebGpuDriver(name)
