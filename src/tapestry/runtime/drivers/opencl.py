"""The OpenCL driver: devices of every installed platform, PoCL's included, in this process through pyopencl.

OpenCL C sources only. Where a hung kernel may occur, use it in a worker: nothing can cancel a kernel in-process.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tapestry.errors import DeviceError, EnvironmentProblem, UnsupportedError, UsageError
from tapestry.runtime.device import Buffer, Call, Command, CopyBuffer, DeviceInfo, Launch, Limits
from tapestry.runtime.drivers.base import Driver
from tapestry.runtime.drivers.listing import DeviceListing
from tapestry.runtime.module import Artifact, KernelModule, Scalar
from tapestry.runtime.names import DeviceName

INSTALL = "pip install 'tapestry-ml[opencl]'"

#: OpenCL forbids empty buffers; a zero-size tensor gets the smallest that every kernel argument type accepts.
MIN_BYTES = 4
#: A pointer argument of a kernel, in bytes: bounds the number of buffers by CL_DEVICE_MAX_PARAMETER_SIZE.
POINTER_BYTES = 8
#: Characters kept from each end of a compiler's log.
LOG_ENDS = 2000

_BASE_DTYPES = frozenset(
    {"bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "complex64"}
)
_INTEGER_DTYPES = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"})
_SCALAR_DTYPES = _INTEGER_DTYPES | {"float16", "float32", "float64"}
_BUILD_HEAD = re.compile(r"^.*?Build on <[^\n]*>:\n", re.DOTALL)
_SOURCE_FILE = re.compile(r"[^\s:]*/tempfile_\w+\.cl")
_FEATURES = {
    "cl_khr_fp16": "fp16",
    "cl_khr_fp64": "fp64",
    "cl_khr_subgroups": "subgroups",
    "cl_khr_int64_base_atomics": "int64-atomics",
}


@dataclass(frozen=True)
class _Kernel:
    """A kernel object, its number of arguments, and the largest workgroup that its compiled form can have."""

    kernel: Any
    arguments: int
    max_invocations: int


@dataclass(frozen=True)
class _Program:
    """A built program and its kernel objects, made at their first launch. Arguments are captured at each enqueue."""

    program: Any
    kernels: dict[str, _Kernel]


class OpenClDriver(Driver[Any, _Program]):
    """One OpenCL device with one in-order queue."""

    def __init__(self, name: DeviceName) -> None:
        super().__init__()
        self._cl: Any = _import_pyopencl()
        self._device: Any = _pick(self._cl, name.index)
        self._info = _describe(self._cl, self._device, str(name))
        self._open()

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def close(self) -> None:
        self._timed_queue = None
        super().close()

    def _open(self) -> None:
        try:
            self._context: Any = self._cl.Context([self._device])
            self._queue: Any = self._cl.CommandQueue(self._context)
        except self._cl.Error as error:
            raise DeviceError(f"{self._info.name} cannot be opened: {error}") from error
        self._timed_queue: Any = None
        self._no_timers = False

    def _reopen(self) -> None:
        self._open()

    def _create(self, nbytes: int) -> Any:
        try:
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, max(MIN_BYTES, nbytes))
        except self._cl.Error as error:
            raise DeviceError(f"{self._info.name}: a buffer of {nbytes:,} bytes failed: {error}") from error

    def _destroy(self, memory: Any) -> None:
        memory.release()  # OpenCL keeps it until enqueued commands have finished

    def _upload(self, memory: Any, data: memoryview, offset: int) -> None:
        source = np.frombuffer(data, np.uint8)
        self._guard("write", lambda: self._cl.enqueue_copy(self._queue, memory, source, dst_offset=offset))

    def _download(self, memory: Any, nbytes: int, offset: int) -> bytes:
        target = np.empty(nbytes, np.uint8)
        self._guard("read", lambda: self._cl.enqueue_copy(self._queue, target, memory, src_offset=offset))
        return target.tobytes()

    def _build(self, module: KernelModule | Artifact) -> _Program:
        if isinstance(module, Artifact):
            raise UnsupportedError(f"{self._info.name} runs OpenCL kernels, not artifacts of {module.loader}")
        if module.language != "opencl":
            raise UnsupportedError(f"{self._info.name} compiles 'opencl' sources, got {module.language!r}")
        try:
            with warnings.catch_warnings():
                # A non-empty log of a build that succeeded is a matter between the backend and its compiler.
                warnings.simplefilter("ignore", self._cl.CompilerWarning)
                program = self._cl.Program(self._context, module.source).build(options=module.options.split())
        except (self._cl.Error, RuntimeError) as error:
            raise DeviceError(f"{self._info.name}: the program does not build: {_trim(str(error))}") from error
        names = {kernel.name for kernel in module.kernels}
        missing = names - set(program.kernel_names.split(";")) if names else set[str]()
        if missing:
            raise DeviceError(f"{self._info.name}: the source has no kernel {sorted(missing)}")
        return _Program(program, {})

    def _launch(self, program: _Program, launch: Launch) -> None:
        self._enqueue(self._queue, program, launch)

    def _call(self, program: _Program, call: Call) -> None:
        raise UnsupportedError(f"{self._info.name} runs kernels, not artifacts")  # unreachable: it loads none

    def _copy(self, source: Any, target: Any, copy: CopyBuffer) -> None:
        self._enqueue_copy(self._queue, source, target, copy)

    def _flush(self) -> None:
        self._guard("flush", self._queue.flush)

    def _finish(self) -> None:
        self._guard("sync", self._queue.finish)

    def _time_once(self, commands: Sequence[Command]) -> float:
        """Seconds from the first command's start to the last one's end, on the device's clock if it has one."""
        if self._no_timers:
            return super()._time_once(commands)
        if self._timed_queue is None:
            flags = self._cl.command_queue_properties.PROFILING_ENABLE
            self._timed_queue = self._cl.CommandQueue(self._context, properties=flags)
        events = [event for command in commands if (event := self._start_timed(command)) is not None]
        self._guard("time", self._timed_queue.finish)
        if not events:
            return 0.0
        try:
            seconds = (events[-1].profile.end - events[0].profile.start) * 1e-9
        except self._cl.Error:
            seconds = 0.0
        if seconds <= 0.0:  # the driver's clock is missing or too coarse for these commands
            self._no_timers = True
            return super()._time_once(commands)
        return seconds

    def _start_timed(self, command: Command) -> Any:
        """The event of a command on the profiling queue, or None when there is nothing to run."""
        if isinstance(command, Launch):
            empty = 0 in command.grid
            return None if empty else self._enqueue(self._timed_queue, self._programs[command.loaded.id], command)
        if isinstance(command, CopyBuffer) and command.nbytes:
            source, target = self._memory[command.source.id], self._memory[command.target.id]
            return self._enqueue_copy(self._timed_queue, source, target, command)
        return None

    def _enqueue(self, queue: Any, program: _Program, launch: Launch) -> Any:
        (gx, gy, gz), (bx, by, bz) = launch.grid, launch.block
        try:
            kernel = self._kernel(program, launch)
            for position, argument in enumerate(launch.args):
                kernel.set_arg(position, self._argument(launch.kernel, argument))
            return self._cl.enqueue_nd_range_kernel(queue, kernel, (gx * bx, gy * by, gz * bz), launch.block)
        except (self._cl.Error, TypeError) as error:
            raise DeviceError(
                f"{self._info.name}: kernel {launch.kernel}, grid {launch.grid}, block {launch.block}: {error}"
            ) from error

    def _kernel(self, program: _Program, launch: Launch) -> Any:
        """The kernel's object, checked against what the launch gives it and what the compiler needs for it."""
        known = program.kernels.get(launch.kernel)
        if known is None:
            kernel = self._cl.Kernel(program.program, launch.kernel)
            info = self._cl.kernel_work_group_info
            local = int(kernel.get_work_group_info(info.LOCAL_MEM_SIZE, self._device))
            if local > self._info.limits.workgroup_memory_bytes:
                raise UnsupportedError(
                    f"kernel {launch.kernel} needs {local:,} bytes of workgroup memory, over the limit of "
                    f"{self._info.limits.workgroup_memory_bytes:,}"
                )
            widest = int(kernel.get_work_group_info(info.WORK_GROUP_SIZE, self._device))
            known = program.kernels[launch.kernel] = _Kernel(kernel, int(kernel.num_args), widest)
        if len(launch.args) != known.arguments:  # else an argument of an earlier launch would stay in place
            raise UsageError(f"kernel {launch.kernel} takes {known.arguments} arguments, got {len(launch.args)}")
        invocations = launch.block[0] * launch.block[1] * launch.block[2]
        if invocations > known.max_invocations:
            raise UnsupportedError(
                f"kernel {launch.kernel}: {invocations:,} invocations in a workgroup, over the limit of "
                f"{known.max_invocations:,} for this kernel on {self._info.name}"
            )
        return known.kernel

    def _enqueue_copy(self, queue: Any, source: Any, target: Any, copy: CopyBuffer) -> Any:
        return self._guard(
            "copy",
            lambda: self._cl.enqueue_copy(
                queue,
                target,
                source,
                byte_count=copy.nbytes,
                src_offset=copy.source_offset,
                dst_offset=copy.target_offset,
            ),
        )

    def _argument(self, kernel: str, argument: Buffer | Scalar) -> Any:
        if isinstance(argument, Buffer):
            return self._memory[argument.id]
        if argument.dtype not in self._info.dtypes or argument.dtype not in _SCALAR_DTYPES:
            raise UnsupportedError(f"kernel {kernel}: {self._info.name} passes no scalar of type {argument.dtype}")
        if argument.dtype in _INTEGER_DTYPES and not isinstance(argument.value, int):
            raise UsageError(f"kernel {kernel}: expected an integer for {argument.dtype}, got {argument.value!r}")
        try:
            return np.dtype(argument.dtype).type(argument.value)
        except OverflowError as error:
            raise UsageError(f"kernel {kernel}: {argument.value} does not fit {argument.dtype}") from error

    def _guard(self, what: str, action: Any) -> Any:
        try:
            return action()
        except self._cl.Error as error:
            raise DeviceError(f"{self._info.name}: {what} failed: {error}") from error


def open_opencl(name: DeviceName) -> OpenClDriver:
    """Opens ``opencl:N``. EnvironmentProblem when pyopencl or a platform is missing, UsageError for an N too high."""
    return OpenClDriver(name)


def list_opencl() -> list[DeviceListing]:
    """Every OpenCL device, in the order of their numbers. EnvironmentProblem when there is none."""
    devices = _devices(_import_pyopencl())
    return [
        DeviceListing(f"opencl:{index}", "opencl", f"{device.name} ({device.platform.name})", True, "")
        for index, device in enumerate(devices)
    ]


def _import_pyopencl() -> ModuleType:
    try:
        import pyopencl
    except ImportError as error:
        raise EnvironmentProblem(f"OpenCL needs pyopencl, which cannot be imported ({error}): {INSTALL}") from error
    return pyopencl


def _devices(cl: Any) -> list[Any]:
    try:
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise EnvironmentProblem(f"OpenCL finds no platform ({error}): {INSTALL} brings PoCL") from error
    if not found:
        raise EnvironmentProblem(f"OpenCL finds no device: {INSTALL} brings PoCL")
    return found


def _pick(cl: Any, index: int) -> Any:
    devices = _devices(cl)
    if index >= len(devices):
        raise UsageError(f"there is no opencl:{index}: this machine has opencl:0 to opencl:{len(devices) - 1}")
    return devices[index]


def _describe(cl: Any, device: Any, name: str) -> DeviceInfo:
    extensions = set(device.extensions.split())
    features = {feature for extension, feature in _FEATURES.items() if extension in extensions}
    if device.type & cl.device_type.CPU:
        features.add("software")
    dtypes = set(_BASE_DTYPES)
    if "fp64" in features:
        dtypes |= {"float64", "complex128"}
    if "fp16" in features:
        dtypes.add("float16")
    identity = (device.platform.name, device.platform.version, device.name, device.vendor, device.version)
    versions = "\n".join((*identity, device.driver_version, device.opencl_c_version))
    sizes = [int(size) for size in device.max_work_item_sizes] + [1, 1, 1]
    return DeviceInfo(
        kind="opencl",
        name=name,
        description=f"{device.name} ({device.platform.name} {device.driver_version})",
        fingerprint=hashlib.sha256(versions.encode()).hexdigest(),
        limits=Limits(
            max_buffer_bytes=int(device.max_mem_alloc_size),
            max_binding_bytes=int(device.max_mem_alloc_size),
            max_bindings=int(device.max_parameter_size) // POINTER_BYTES,
            max_grid=(0, 0, 0),
            max_block=(sizes[0], sizes[1], sizes[2]),
            max_invocations=int(device.max_work_group_size),
            workgroup_memory_bytes=int(device.local_mem_size),
            memory_bytes=int(device.global_mem_size),
        ),
        dtypes=frozenset(dtypes),
        features=frozenset(features),
    )


def _trim(log: str) -> str:
    """A compiler's log without what differs from run to run (file names, addresses), and without its middle."""
    log = _BUILD_HEAD.sub("", log)
    log = _SOURCE_FILE.sub("source.cl", log).strip()
    if len(log) <= 2 * LOG_ENDS:
        return log
    return f"{log[:LOG_ENDS]}\n… {len(log) - 2 * LOG_ENDS} characters left out …\n{log[-LOG_ENDS:]}"
