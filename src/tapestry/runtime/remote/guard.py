"""Whom and what an agent lets in: which web pages and host names, and which modules.

Not here: the token, which the session compares.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from tapestry.errors import UsageError
from tapestry.runtime.module import Artifact, KernelModule

#: The loader whose artifacts hold no code: a graph of operators as JSON, interpreted by PyTorch.
INTERPRETER = "tapestry.backends.eager:load"
#: The namespaces of PyTorch's own operators. Others were loaded with a library and may do anything.
NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed"})
#: What reads and writes files.
REFUSED_OPERATORS = frozenset({"aten.from_file"})


class _Graph(msgspec.Struct):
    """As much of a stored graph as is looked at here: the second field of a call is its operator."""

    calls: list[tuple[str, str, list[object], dict[str, object], list[object], bool]]


_graphs = msgspec.json.Decoder(_Graph)


@dataclass(frozen=True)
class Refusal:
    """An answer over HTTP instead of a WebSocket."""

    status: HTTPStatus
    text: str


@dataclass(frozen=True)
class Guard:
    """``origins`` are web pages that may connect (none by default); ``hosts`` are names of this machine."""

    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    allow_native: bool = False

    @staticmethod
    def of(origins: Sequence[str], hosts: Sequence[str], allow_native: bool) -> Guard:
        """``hosts`` are names beside ``localhost`` and this machine's own, which a stranger cannot point elsewhere."""
        own = socket.gethostname().lower()
        names = {"localhost", own, f"{own}.local", *(host.lower() for host in hosts)}
        return Guard(frozenset(origins), frozenset(names), allow_native)

    def refuses(self, path: str, hosts: Sequence[str], origins: Sequence[str]) -> Refusal | None:
        """What a request for a WebSocket gets instead, by its path and its Host and Origin headers; None: let it in.

        A browser sends an Origin with every WebSocket, and cannot be kept from sending one: a page that isn't listed
        is refused, whatever token it found. A Host that is a name, and not one of ours, is a page whose name was
        pointed to this address (DNS rebinding).
        """
        if path != "/":
            return Refusal(HTTPStatus.NOT_FOUND, "Tapestry's agent serves its device at / only.\n")
        if len(hosts) != 1 or not self._is_our_host(hosts[0]):
            return Refusal(
                HTTPStatus.FORBIDDEN,
                "The Host header is not a name of this agent's machine: use its address, "
                "or start the agent with --host NAME.\n",
            )
        if any(origin not in self.origins for origin in origins):
            return Refusal(
                HTTPStatus.FORBIDDEN,
                "Web pages of this origin may not use this agent: start it with --origin ORIGIN to let them.\n",
            )
        return None

    def _is_our_host(self, header: str) -> bool:
        name = _without_port(header).lower().removesuffix(".")
        try:
            ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
        except ValueError:
            return name in self.hosts
        return True

    def admit(self, module: KernelModule | Artifact) -> None:
        """UsageError for an artifact that may run native code, whatever it says of itself, unless that is allowed."""
        if self.allow_native or isinstance(module, KernelModule):
            return
        if module.native or module.loader != INTERPRETER:
            raise UsageError(
                f"this agent refuses artifacts of {module.loader[:100]!r}, which may run native code{_ADVICE}"
            )
        _check_operators(module.payload)


_ADVICE = ": start it with --allow-native if you trust whoever has its token"


def _check_operators(payload: bytes) -> None:
    try:
        graph = _graphs.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"expected a stored graph in the artifact, got bytes that do not decode: {error}") from error
    for call in graph.calls:
        namespace, _, rest = call[1].partition(".")
        if namespace not in NAMESPACES or f"{namespace}.{rest.partition('.')[0]}" in REFUSED_OPERATORS:
            raise UsageError(f"this agent refuses the operator {call[1][:100]!r}, which is not PyTorch's own{_ADVICE}")


def loopback_only(host: str) -> bool:
    """Whether only this machine reaches a socket that listens there."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _without_port(header: str) -> str:
    if header.startswith("["):
        address, end, _ = header.partition("]")
        return address + end
    return header.partition(":")[0]
