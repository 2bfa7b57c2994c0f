"""Who gets in at the host of a browser device, and what becomes of a tab that misbehaves. No browser."""

from __future__ import annotations

import http.client
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from support.fake_tab import connect_as_tab, free_port, tab
from support.mock_device import MockDevice
from tapestry.errors import ConnectionLostError, DeviceLostError, DeviceTimeoutError, EnvironmentProblem
from tapestry.runtime.browser import shared
from tapestry.runtime.browser.device import AnyTabDevice
from tapestry.runtime.browser.host import MOST_WAITING, PROTOCOL, TabHost
from tapestry.runtime.browser.pages import pages
from tapestry.runtime.device import DeviceStats
from tapestry.runtime.names import DeviceName
from tapestry.runtime.protocol.framing import PREFIX, Frame, join_frame


@pytest.fixture
def host() -> Iterator[TabHost]:
    host = TabHost()
    yield host
    host.close()


def get(host: TabHost, path: str, name: str = "") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=10)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", name or f"localhost:{host.port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_and_nothing_else_is_served(host: TabHost) -> None:
    for path, page in pages().items():
        status, headers, body = get(host, path)
        assert (status, body) == (200, page.body)
        assert headers["Content-Type"] == page.content_type
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert pages()["/"].content_type.startswith("text/html")
    assert get(host, "/?x=1")[0] == 200
    for path in ("/package.json", "/../host.py", "/static/index.html", "/%2e%2e/host.py", "//", "/webgpu"):
        assert get(host, path)[0] == 404


def test_the_page_names_only_files_that_are_served() -> None:
    import re

    names = {name for page in pages().values() for name in re.findall(rb'(?:src|href)="([^":]+)"', page.body)}
    assert {f"/{name.decode()}" for name in names} <= set(pages())
    for path, page in pages().items():
        for module in re.findall(rb'from "(\.[^"]+)"', page.body):
            folder = path.rpartition("/")[0]
            target = module.decode().replace("./", f"{folder}/", 1) if module.startswith(b"./") else module.decode()[2:]
            assert target in pages(), f"{path} imports {module!r}"
        assert b"http://" not in page.body.replace(b"http://localhost", b"").replace(b"http://www.w3.org", b"")
        assert b"//cdn" not in page.body


@pytest.mark.parametrize("name", ["evil.example", "evil.example:{port}", "localhost", "localhost:1", "[::1]:{port}"])
def test_a_rebound_name_is_refused(host: TabHost, name: str) -> None:
    status, headers, body = get(host, "/", name.format(port=host.port))
    assert status == 421
    assert "Content-Security-Policy" not in headers
    assert body == b"this host answers to its own name only\n"


@pytest.mark.parametrize(
    ("origin", "token", "status"),
    [
        ("http://evil.example", None, 403),
        ("https://localhost:{port}", None, 403),
        ("http://localhost:1", None, 403),
        ("null", None, 403),
        ("http://localhost:{port}", "wrong", 401),
        ("http://localhost:{port}", "", 401),
        ("http://evil.example", "wrong", 401),
    ],
)
def test_who_is_not_let_in(host: TabHost, origin: str, token: str | None, status: int) -> None:
    token = host.token if token is None else token
    with pytest.raises(InvalidStatus) as caught, connect_as_tab(host.port, token, origin.format(port=host.port)):
        pass
    assert caught.value.response.status_code == status
    assert host.token not in str(caught.value.response.body)
    assert host.take(0.2) is None


def test_a_websocket_to_a_rebound_name_is_refused(host: TabHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", host.port))])
    with pytest.raises(InvalidStatus) as caught, connect_as_tab(host.port, host.token, host="evil.example"):
        pass
    assert caught.value.response.status_code == 421


def test_the_address_has_the_token_where_it_is_not_sent(host: TabHost) -> None:
    address, _, fragment = host.url.partition("#")
    assert address == f"http://localhost:{host.port}/"
    assert fragment == f"token={host.token}"
    assert len(host.token) >= 32
    assert TabHost.__init__.__defaults__ == (0, "")  # a fresh token unless one is given


def test_it_listens_on_loopback_only(host: TabHost) -> None:
    assert host._socket.getsockname()[0] == "127.0.0.1"  # noqa: SLF001


def test_a_tab_that_went_away_is_passed_over(host: TabHost) -> None:
    with connect_as_tab(host.port, host.token) as gone:
        assert gone.subprotocol == PROTOCOL
    with connect_as_tab(host.port, host.token):
        channel = host.take(10)
        assert channel is not None
        channel.cut()
    assert host.take(0.1) is None


def test_many_that_went_away_do_not_keep_others_out(host: TabHost) -> None:
    for _ in range(MOST_WAITING + 4):
        with connect_as_tab(host.port, host.token):
            pass
    with connect_as_tab(host.port, host.token):
        channel = host.take(10)
        assert channel is not None
        channel.cut()


def test_more_than_can_wait_are_sent_away(host: TabHost) -> None:
    with ExitStack() as stack:
        tabs = [stack.enter_context(connect_as_tab(host.port, host.token)) for _ in range(MOST_WAITING + 1)]
        # Which one comes too many is up to the threads that let them in.
        until = time.monotonic() + 30
        while not (sent_away := [tab for tab in tabs if _is_closed(tab)]) and time.monotonic() < until:
            pass
        assert len(sent_away) == 1
        assert host.take(10) is not None


def _is_closed(tab: ClientConnection) -> bool:
    try:
        tab.recv(0.05)
    except TimeoutError:
        return False
    except ConnectionClosed:
        return True
    return False


def test_a_port_in_use_and_a_missing_library_are_problems_of_the_environment(
    host: TabHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentProblem, match=f"port {host.port}"):
        TabHost(host.port)
    monkeypatch.setitem(sys.modules, "websockets.sync.server", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'tapestry-ml\[remote\]'"):
        TabHost()


# Devices behind a tab that somebody opens.


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def served(port: int) -> Iterator[TabHost]:
    """The host that devices on the port share, there before the first one."""
    with shared.kept(port):
        yield shared._hosts[port]  # noqa: SLF001


def opened(port: int, *, timeout: float = 10, start_timeout: float = 10) -> AnyTabDevice:
    return AnyTabDevice(
        DeviceName("browser", port=port), timeout=timeout, start_timeout=start_timeout, announce=lambda _: None
    )


def test_a_closed_tab_is_lost_until_the_next_one_comes(port: int, served: TabHost) -> None:
    with tab(port, served.token), opened(port) as device:
        buffer = device.alloc(4)
        device.write(buffer, b"abcd")
        assert device.read(buffer, 4) == b"abcd"
        served_first = device.info
    with tab(port, served.token) as channel, opened(port) as device:
        channel.cut()
        with pytest.raises(ConnectionLostError, match=r"restart\(\) waits for a tab again"):
            device.sync()
        with pytest.raises(ConnectionLostError, match="is gone"):
            device.alloc(4)
        with tab(port, served.token):
            device.restart()
            assert device.generation == 1
            assert device.stats() == DeviceStats()
            assert device.info == served_first


def test_the_address_is_announced_when_no_tab_comes_by_itself(port: int) -> None:
    said: list[str] = []
    with pytest.raises(EnvironmentProblem, match="no tab has opened"):
        AnyTabDevice(DeviceName("browser", port=port), start_timeout=0.2, announce=said.append)
    assert len(said) == 1
    assert f"http://localhost:{port}/#token=" in said[0]
    with TabHostOnPort(port):
        pass  # the port is free again


class TabHostOnPort:
    def __init__(self, port: int) -> None:
        self.host = TabHost(port)

    def __enter__(self) -> TabHost:
        return self.host

    def __exit__(self, *_: object) -> None:
        self.host.close()


def test_devices_of_one_port_share_its_host(port: int, served: TabHost) -> None:
    with tab(port, served.token), opened(port) as one, tab(port, served.token), opened(port) as other:
        assert one.url == other.url == served.url
        one.close()
        assert other.ping() > 0
        with pytest.raises(DeviceLostError, match="closed"):
            _ = one.url


def test_a_fixed_token(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared.TOKEN_VARIABLE, "a token with spaces")
    with shared.kept(port):
        assert shared._hosts[port].url.endswith("#token=a%20token%20with%20spaces")  # noqa: SLF001


def test_a_tab_that_never_answers_is_given_up(port: int, served: TabHost) -> None:
    with connect_as_tab(port, served.token), pytest.raises(DeviceTimeoutError, match=r"'hello' within 0\.5 s"):
        opened(port, start_timeout=0.5)


def test_a_slow_tab_times_out_and_is_let_go(port: int, served: TabHost) -> None:
    class Slow(MockDevice):
        def sync(self) -> None:
            time.sleep(2)

    with tab(port, served.token, Slow()), opened(port) as device:
        device.timeout = 0.3
        with pytest.raises(DeviceTimeoutError, match=r"'sync' within 0\.3 s"):
            device.sync()
        device.timeout = 10
        with tab(port, served.token):
            device.restart()
            device.sync()


HEADER = msgspec.msgpack.encode({"op": "reply", "id": 1, "result": {}})


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"1234567",
        PREFIX.pack(2**31, 0) + b"x",
        PREFIX.pack(1, 2**31) + b"x",
        PREFIX.pack(9, 0) + b"x",
        join_frame(Frame(b"\xc1")),
        join_frame(Frame(msgspec.msgpack.encode([1]))),
        join_frame(Frame(msgspec.msgpack.encode({"op": "reply", "id": 77, "result": {}}))),
        join_frame(Frame(HEADER, b"payload")),
        join_frame(Frame(HEADER)),  # a welcome without content
        "text",
    ],
    ids=str,
)
def test_what_a_tab_sends_wrongly_costs_its_connection(port: int, served: TabHost, message: bytes | str) -> None:
    with connect_as_tab(port, served.token) as connection:
        connection.send(message)
        with pytest.raises(DeviceLostError, match="restart") as caught:
            opened(port)
        assert not isinstance(caught.value, DeviceTimeoutError)


def test_a_message_over_the_limit_is_refused_unread(host: TabHost) -> None:
    with connect_as_tab(host.port, host.token) as connection:
        with pytest.raises(ConnectionClosed):  # noqa: PT012 - which of the two notices is a race
            connection.send(bytes(13 << 20))
            connection.recv(10)
        assert host.take(0.2) is None
