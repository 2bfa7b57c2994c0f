"""The sample inputs in a .pt2 file: tensors and plain containers, read as data.

torch.export.save writes them with torch.save: a zip of raw storages and a pickle that describes the tensors. That
pickle is not executed. Its opcodes are decoded (pickletools, which executes nothing) and only the few that describe
dense tensors, numbers, strings, tuples, lists and dicts are followed; names of classes and functions are compared to a
fixed table, never looked up. Anything else is refused.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch

from tapestry.errors import FormatError

#: Storage class by its name in the file → dtype.
_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128,
}  # fmt: skip
_REBUILD = "torch._utils _rebuild_tensor_v2"
_ORDERED = "collections OrderedDict"
#: The largest tensor, in bytes: an expanded one may be larger than its storage.
_TENSOR_LIMIT = 1 << 32
_VALUES = 100_000
_DEPTH = 64


class NotDataError(Exception):
    """The pickle holds something other than tensors and plain containers; the message says what."""


@dataclass(frozen=True)
class _Name:
    """A class or function by name: a mark that stands for itself, never looked up."""

    name: str


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: torch.dtype
    numel: int


_MARK = _Name("(")


def read_samples(data: bytes, what: str) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """Positional and keyword arguments; None where the file has none.

    ``what`` names the entry in messages. NotDataError when it holds more than data, FormatError when it is damaged.
    """
    if not data:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            storages = _Storages(inner, sum(info.file_size for info in inner.infolist()) <= len(data))
            value = _Reader(storages).read(storages.entry("data.pkl"))
    except zipfile.BadZipFile as error:
        if data[:1] == b"\x80":
            raise NotDataError("a bare pickle") from error
        raise FormatError(f"{what} is damaged: {error}") from error
    except (ValueError, IndexError, KeyError, TypeError, RuntimeError, EOFError, OverflowError) as error:
        raise FormatError(f"{what} is damaged: {type(error).__name__}: {error}") from error
    return _arguments(value, what)


def _arguments(value: object, what: str) -> tuple[tuple[object, ...], dict[str, object]]:
    for count, _ in enumerate(_walk(value, 0)):
        if count >= _VALUES:
            raise FormatError(f"{what} holds more than {_VALUES} values")
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        if len(parts) == 2 and isinstance(parts[0], tuple | list) and isinstance(parts[1], dict):
            named = cast("dict[object, object]", parts[1])
            if all(isinstance(key, str) for key in named):
                return tuple(cast("list[object]", parts[0])), cast("dict[str, object]", named)
    raise FormatError(f"{what}: expected positional and keyword arguments, got {type(value).__name__}")


def _walk(value: object, depth: int) -> Iterator[object]:
    if depth > _DEPTH:
        raise FormatError(f"sample inputs are nested more than {_DEPTH} deep")
    if isinstance(value, _Name | _Storage):
        raise NotDataError(f"{value}")
    yield value
    if isinstance(value, dict):
        for entry in cast("dict[object, object]", value).values():
            yield from _walk(entry, depth + 1)
    elif isinstance(value, tuple | list):
        for entry in cast("list[object]", value):
            yield from _walk(entry, depth + 1)


class _Storages:
    """The raw storages of a torch.save archive."""

    def __init__(self, inner: zipfile.ZipFile, sizes_are_sound: bool) -> None:
        if not sizes_are_sound or any(info.compress_type != zipfile.ZIP_STORED for info in inner.infolist()):
            raise FormatError("the sample inputs are compressed, which torch.save never does")
        self._inner = inner
        self._names = {info.filename.partition("/")[2]: info for info in inner.infolist()}
        self._tensors: dict[str, torch.Tensor] = {}
        if "byteorder" in self._names and self.entry("byteorder") != b"little":
            raise FormatError("the sample inputs are not little-endian")

    def entry(self, name: str) -> bytes:
        """The bytes of an entry; KeyError when it is missing."""
        return self._inner.read(self._names[name])

    def tensor(self, storage: _Storage) -> torch.Tensor:
        """A storage as a flat tensor, the same one each time."""
        if storage.key not in self._tensors:
            raw = bytearray(self.entry(f"data/{storage.key}"))
            if len(raw) != storage.numel * storage.dtype.itemsize:
                raise FormatError(f"storage {storage.key} has {len(raw)} bytes, not {storage.numel} {storage.dtype}")
            empty = torch.empty(0, dtype=storage.dtype)
            self._tensors[storage.key] = torch.frombuffer(raw, dtype=storage.dtype) if raw else empty
        found = self._tensors[storage.key]
        if found.dtype != storage.dtype:
            raise FormatError(f"storage {storage.key} is used as {storage.dtype} and as {found.dtype}")
        return found


def strided(flat: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """A view of a flat tensor. FormatError when it would reach outside, or is too large to be meant."""
    numbers = (*sizes, *strides, offset)
    if len(sizes) != len(strides) or any(type(entry) is not int or entry < 0 for entry in numbers):
        raise FormatError(f"not the geometry of a tensor: sizes {sizes}, strides {strides}, offset {offset}")
    numel = 1
    for size in sizes:
        numel *= size
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if numel and last >= flat.numel():
        raise FormatError(f"sizes {sizes} and strides {strides} reach outside a storage of {flat.numel()} elements")
    if numel * flat.dtype.itemsize > max(_TENSOR_LIMIT, flat.nbytes):
        raise FormatError(f"sizes {sizes} make a tensor of over {_TENSOR_LIMIT} bytes")
    return flat.as_strided(sizes, strides, offset if numel else 0)


@dataclass
class _Reader:
    """A stack machine for the opcodes that describe data."""

    storages: _Storages
    stack: list[object] = field(default_factory=list[object])
    memo: dict[int, object] = field(default_factory=dict[int, object])

    def read(self, data: bytes) -> object:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return self.stack.pop()
            step = _STEPS.get(opcode.name)
            if step is None:
                raise NotDataError(f"the pickle opcode {opcode.name}")
            step(self, argument)
        raise FormatError("the sample inputs end early")

    def constant(self, value: object) -> None:
        self.stack.append(value)

    def put(self, argument: object) -> None:
        self.memo[cast("int", argument)] = self.stack[-1]

    def get(self, argument: object) -> None:
        self.stack.append(self.memo[cast("int", argument)])

    def name(self, argument: object) -> None:
        name = str(argument)
        module, _, kind = name.partition(" ")
        if name not in (_REBUILD, _ORDERED) and not (module == "torch" and kind in _STORAGES):
            raise NotDataError(f"{module}.{kind}")
        self.stack.append(_Name(name))

    def storage(self, _: object) -> None:
        parts = self.stack.pop()
        match parts:
            case ("storage", _Name(name), str(key), str(place), int(numel)) if re.fullmatch(r"\d+", key, re.ASCII):
                if place != "cpu":
                    raise FormatError(f"expected sample inputs on the CPU, got {place}; export the model on the CPU")
                self.stack.append(_Storage(key, _STORAGES[name.partition(" ")[2]], numel))
            case _:
                raise NotDataError("a stored reference that is not to a dense tensor's storage")

    def call(self, _: object) -> None:
        arguments = cast("tuple[object, ...]", self.stack.pop())
        function = self.stack.pop()
        if function == _Name(_ORDERED) and arguments == ():
            self.stack.append({})
            return
        storage, offset, sizes, strides = arguments[:4]
        if function != _Name(_REBUILD) or not isinstance(storage, _Storage):
            raise NotDataError(f"a call of {function}")
        flat = self.storages.tensor(storage)
        geometry = cast("tuple[tuple[int, ...], tuple[int, ...], int]", (sizes, strides, offset))
        self.stack.append(strided(flat, *geometry))

    def items(self) -> list[object]:
        """What was pushed since the last mark."""
        place = len(self.stack) - 1 - self.stack[::-1].index(_MARK)
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found

    def take(self, count: int) -> list[object]:
        if len(self.stack) < count:
            raise FormatError("the sample inputs are damaged")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def extend(self, values: list[object]) -> None:
        cast("list[object]", self.stack[-1]).extend(values)

    def update(self, values: list[object]) -> None:
        cast("dict[object, object]", self.stack[-1]).update(zip(values[::2], values[1::2], strict=True))


_Step = Callable[[_Reader, object], None]
_STEPS: dict[str, _Step] = {
    "PROTO": lambda reader, version: None,
    "MARK": lambda reader, _: reader.constant(_MARK),
    "NONE": lambda reader, _: reader.constant(None),
    "NEWTRUE": lambda reader, _: reader.constant(True),
    "NEWFALSE": lambda reader, _: reader.constant(False),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _Reader.constant),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Reader.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Reader.get),
    "GLOBAL": _Reader.name,
    "BINPERSID": _Reader.storage,
    "REDUCE": _Reader.call,
    "EMPTY_TUPLE": lambda reader, _: reader.constant(()),
    "EMPTY_LIST": lambda reader, _: reader.constant([]),
    "EMPTY_DICT": lambda reader, _: reader.constant({}),
    "TUPLE": lambda reader, _: reader.constant(tuple(reader.items())),
    "TUPLE1": lambda reader, _: reader.constant(tuple(reader.take(1))),
    "TUPLE2": lambda reader, _: reader.constant(tuple(reader.take(2))),
    "TUPLE3": lambda reader, _: reader.constant(tuple(reader.take(3))),
    "APPEND": lambda reader, _: reader.extend(reader.take(1)),
    "APPENDS": lambda reader, _: reader.extend(reader.items()),
    "SETITEM": lambda reader, _: reader.update(reader.take(2)),
    "SETITEMS": lambda reader, _: reader.update(reader.items()),
}
