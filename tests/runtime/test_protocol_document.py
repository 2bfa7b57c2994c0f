"""docs/protocol.md says what the code does: every message, every field, every command, and the example bytes."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec
import pytest

from tapestry.runtime.device import DeviceInfo, DeviceStats, Limits, LogEntry
from tapestry.runtime.module import Artifact, KernelModule
from tapestry.runtime.protocol import messages as m
from tapestry.runtime.protocol.framing import FrameLimits, parse_frame

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[2] for match in re.finditer(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
REQUESTS: dict[str, type[m.Message]] = {str(t.__struct_config__.tag): t for t in typing.get_args(m.Request)}


def test_it_describes_exactly_the_messages_there_are() -> None:
    assert set(SECTIONS) == set(REQUESTS)
    assert f"version {m.PROTOCOL_VERSION}" in TEXT.splitlines()[0]


@pytest.mark.parametrize("op", REQUESTS)
def test_it_describes_exactly_the_fields_there_are(op: str) -> None:
    own = {field.name: field for field in msgspec.structs.fields(REQUESTS[op]) if field.name != "id"}
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", SECTIONS[op].split("Result")[0], re.MULTILINE))
    assert set(rows) == set(own)
    for name, field in own.items():
        if field.required:
            assert rows[name].strip() == "required"
        else:
            assert rows[name].strip() == msgspec.json.encode(field.default).decode()


@pytest.mark.parametrize(
    ("op", "result"),
    [("hello", m.Welcome), ("hello", m.ServerLimits), ("info", DeviceInfo), ("info", Limits), ("time", m.Seconds),
     ("log", m.Entries), ("log", LogEntry), ("stats", DeviceStats)],
)  # fmt: skip
def test_it_names_every_field_of_a_result(op: str, result: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(result):
        assert re.search(rf"\b{field.name}\b", SECTIONS[op]), field.name


def test_it_shows_commands_and_modules_as_they_are_encoded() -> None:
    for command in typing.get_args(m.WireCommand):
        names = [field.name for field in msgspec.structs.fields(command)]
        assert f'["{command.__struct_config__.tag}", {", ".join(names)}]' in TEXT
    for module in (KernelModule, Artifact):
        names = [field.name for field in msgspec.structs.fields(module)]
        assert f'{{type: "{module.__struct_config__.tag}", {", ".join(names)}}}' in TEXT
    for answer in (m.Reply, m.Failure):
        names = [field.name for field in msgspec.structs.fields(answer)]
        assert f'{{op: "{answer.__struct_config__.tag}", {", ".join(names)}}}' in TEXT


def test_its_example_bytes_are_right() -> None:
    block = re.search(r"```hex\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    request, reply = (bytes.fromhex(line.replace(" ", "")) for line in block[1].splitlines())
    header = parse_frame(request, FrameLimits()).header
    assert msgspec.msgpack.decode(header, type=m.Request) == m.Ping(id=5)
    answer = msgspec.msgpack.decode(parse_frame(reply, FrameLimits()).header, type=m.Answer)
    assert isinstance(answer, m.Reply)
    assert (answer.id, bytes(answer.result)) == (5, b"\x80")


def test_it_lists_every_kind_of_error() -> None:
    kinds = set(
        re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", TEXT.split("### Errors of pipelined")[0], re.MULTILINE)
    )
    assert kinds == {kind for _, kind in m._KINDS} | {"missing"}  # noqa: SLF001
