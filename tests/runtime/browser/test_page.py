"""The agent page as a person sees it: what it says, that it fits, that it asks for nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.devtools import Page, page, wait_until
from support.fake_tab import free_port
from tapestry.errors import DeviceError
from tapestry.runtime.browser import shared
from tapestry.runtime.browser.device import AnyTabDevice
from tapestry.runtime.browser.host import TabHost
from tapestry.runtime.device import Launch
from tapestry.runtime.module import KernelDecl, KernelModule
from tapestry.runtime.names import DeviceName

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BUMP = "@group(0) @binding(0) var<storage, read_write> x: array<u32>; @compute @workgroup_size(1) fn bump() { x[0]++; }"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def host(port: int) -> Iterator[TabHost]:
    with shared.kept(port):
        yield shared._hosts[port]  # noqa: SLF001


@pytest.fixture
def shown(host: TabHost) -> Iterator[Page]:
    with page(host.url) as opened:
        wait_until(lambda: opened.text("state") == "Ready")
        yield opened


def test_it_says_what_it_does(shown: Page, port: int) -> None:
    assert shown.text("adapter") not in ("", "none")
    assert "max buffer size" in shown.text("limits")
    with AnyTabDevice(DeviceName("browser", port=port)) as device:
        wait_until(lambda: shown.text("state") == "Driven")
        x = device.alloc(3 << 20)
        device.write(x, bytes(3 << 20))
        loaded = device.load(KernelModule("wgsl", BUMP, (KernelDecl("bump", "x"),)))
        device.submit([Launch(loaded, "bump", (x,), (1, 1, 1), (1, 1, 1))] * 1500)
        device.sync()
        wait_until(lambda: shown.text("launches") == "1,500")
        assert (shown.text("kernel"), shown.text("held"), shown.text("moved")) == ("bump", "3.0 MiB", "3.0 MiB")
        wait_until(lambda: shown.text("command") == "nothing")
        with pytest.raises(DeviceError):
            device.load(KernelModule("wgsl", "fn f() { nonsense(); }", ()))
        wait_until(lambda: "nonsense" in shown.text("error"))
    wait_until(lambda: shown.text("state") == "Ready")
    assert shown.text("held") == "0 bytes"


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800), (320, 480)])
def test_it_fits(shown: Page, width: int, height: int) -> None:
    shown.resize(width, height)
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    texts = "[...document.querySelectorAll('body *')].filter(e => e.innerText)"
    assert shown.evaluate(f"{texts}.every(e => parseFloat(getComputedStyle(e).fontSize) >= 13)")


def test_what_reading_aloud_needs(shown: Page) -> None:
    assert shown.evaluate("document.documentElement.lang") == "en"
    assert shown.evaluate("document.title")
    assert shown.evaluate("document.querySelector('[role=status] #state') !== null")
    names = "[...document.querySelectorAll('section')].map(e => e.getAttribute('aria-labelledby'))"
    assert shown.evaluate(f"{names}.every(name => document.getElementById(name).innerText)")
    assert shown.evaluate("[...document.querySelectorAll('h1')].length") == 1
    contrast = shown.evaluate(CONTRAST)
    assert contrast >= 4.5, "WCAG 2.2, 1.4.3"


#: The least contrast of any text to what is behind it, by WCAG's formula for relative luminance.
CONTRAST = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => { const [r, g, b] = parts(color).map((c) => (c /= 255) <= 0.04045 ? c / 12.92
    : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { const color = getComputedStyle(e).backgroundColor;
    return parts(color)[3] === 0 && e.parentElement ? behind(e.parentElement) : color; };
  return Math.min(...[...document.querySelectorAll('body *')].filter((e) => e.innerText).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()"""


def test_nothing_comes_from_elsewhere(shown: Page, port: int) -> None:
    loaded = shown.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded
    assert all(name.startswith((f"http://localhost:{port}/", "data:")) for name in loaded)
    blocked = "fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'blocked')"
    assert shown.evaluate(blocked) == "blocked"
    assert shown.evaluate("isSecureContext && crossOriginIsolated")


def test_the_token_leaves_the_address_and_outlives_a_reload(shown: Page, host: TabHost, port: int) -> None:
    assert shown.evaluate("location.href") == f"http://localhost:{port}/"
    shown.call("Page.reload")
    wait_until(lambda: shown.text("state") == "Ready")
    host.token = "another"
    shown.call("Page.reload")
    wait_until(lambda: shown.text("state") == "Refused")
    assert "Open the address that tapestry has printed" in shown.text("sentence")


def test_it_says_when_its_host_is_gone(port: int) -> None:
    host = shared.enter(port)
    with page(host.url) as shown:
        wait_until(lambda: shown.text("state") == "Ready")
        shared.leave(port)
        wait_until(lambda: shown.text("state") == "Connecting")
        with shared.kept(port):  # this process's token is still the same
            wait_until(lambda: shown.text("state") == "Ready")
