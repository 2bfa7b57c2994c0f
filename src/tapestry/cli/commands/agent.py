"""``tapestry agent``: serve a device of this machine to another one, or to another process."""

from __future__ import annotations

import ipaddress
import secrets
import signal
import socket
import time
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from tapestry.cli import options
from tapestry.cli.console import err, out
from tapestry.cli.documents import AgentDocument, write_json
from tapestry.cli.environment import environment
from tapestry.cli.preflight import check_outputs
from tapestry.errors import UsageError
from tapestry.extras import missing
from tapestry.runtime.names import DeviceName, parse_device_name

#: Where it listens if nothing else is said.
DEFAULT_LISTEN = "127.0.0.1:8790"
#: A shorter token can be guessed: 16 letters and digits are what trying could not find in years.
SHORT_TOKEN = 16


def agent(
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="The device to serve: cpu, opencl:0.", show_default=False)
    ],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Beyond 127.0.0.1, others reach it too; port 0: any.")
    ] = DEFAULT_LISTEN,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="T", envvar="TAPESTRY_TOKEN", show_envvar=False,
            help="The secret that lets a client in, also as TAPESTRY_TOKEN; made up and shown unless given.",
        ),
    ] = None,
    allow_native: Annotated[
        bool, typer.Option("--allow-native", help="Run artifacts of native code: clients can do anything.")
    ] = False,
    quota: Annotated[
        int, typer.Option("--quota", metavar="MIB", help="Weights kept for clients that come back.", min=1)
    ] = 1024,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A name of this machine; repeatable.")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option("--origin", metavar="ORIGIN", help="A web page that may connect; repeatable.")
    ] = None,
    json: options.Json = None,
) -> None:  # fmt: skip
    """Serve a device over a WebSocket until interrupted; see docs/remote.md."""
    begin = time.perf_counter()
    check_outputs(json)
    name = _local(device)
    address = parse_address(listen)
    if token is not None and not 1 <= len(token) <= 1024:
        raise UsageError(f"expected a token of 1 to 1,024 characters, got {len(token)}")
    secret = token or secrets.token_urlsafe(24)

    from tapestry.runtime.remote.agent import Agent, AgentOptions
    from tapestry.runtime.remote.guard import Guard, loopback_only

    guard = Guard.of(origin or (), [address[0], *(host or ())], allow_native)
    try:
        serving = Agent(AgentOptions(name, secret, address, guard, quota << 20), _tell)
    except ModuleNotFoundError as error:
        raise missing(error, "the agent") or error from error
    signal.signal(signal.SIGTERM, _leave)
    shown = str(DeviceName("ws", 0, *_reached_at(serving.address), target=str(name)))
    try:
        if json is not None:
            document = AgentDocument(
                command="agent", seconds=time.perf_counter() - begin, environment=environment(), device=str(name),
                address=shown, native=allow_native,
            )  # fmt: skip
            write_json(json, document)
        err.print(f"serving {name} ({serving.info.description}); stop with Ctrl-C", soft_wrap=True)
        if not loopback_only(address[0]):
            _warn(_open_words(address[0], allow_native))
        if token is not None and len(token) < SHORT_TOKEN:
            _warn(
                f"the token has {len(token)} characters; one so short can be guessed; without --token, one is made up."
            )
        out.print(f"{shown}?token={'…' if token else secret}", soft_wrap=True)
        serving.serve_forever()
    finally:
        serving.stop()


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, an IPv6 address in square brackets. UsageError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    bare = not text.startswith("[") and ":" in host
    if not colon or not host or bare or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"expected --listen HOST:PORT, such as {DEFAULT_LISTEN}, got {text[:100]!r}")
    return host, int(port)


def _reached_at(listening: tuple[str, int]) -> tuple[str, int]:
    """The address for others, where it listens on all of this machine's."""
    host, port = listening
    if not ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        return listening
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Sends nothing: it only asks the system which of its addresses leads out (RFC 5737, RFC 3849).
            probe.connect(("2001:db8::1" if ":" in host else "192.0.2.1", 9))
            return probe.getsockname()[0], port
    except OSError:
        return socket.gethostname(), port


def _local(device: str) -> DeviceName:
    name = parse_device_name(device)
    if name.remote:
        raise UsageError(f"an agent serves a device of its own machine, not {name}")
    return name


def _warn(text: str) -> None:
    err.print(Text.assemble(("warning: ", "yellow"), text), soft_wrap=True)


def _open_words(host: str, allow_native: bool) -> str:
    native = " With --allow-native, that is anything this user can do." if allow_native else ""
    return (
        f"{host} is reached from other machines: whoever has the token can use this device, and whoever listens on "
        f"the network can read it, for nothing is encrypted.{native} See docs/remote.md for a tunnel."
    )


def _tell(line: str) -> None:
    err.print(f"{time.strftime('%H:%M:%S')} {line}", soft_wrap=True)


def _leave(number: int, frame: object) -> NoReturn:
    raise typer.Exit(0)
