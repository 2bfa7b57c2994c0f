from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapestry.errors import EnvironmentProblem, UsageError
from tapestry.runtime.names import DeviceName, parse_device_name
from tapestry.runtime.open import open_device, open_in_process


@pytest.mark.parametrize(
    ("text", "name", "printed"),
    [
        ("cpu", DeviceName("cpu"), "cpu"),
        ("opencl", DeviceName("opencl", 0), "opencl:0"),
        ("opencl:1", DeviceName("opencl", 1), "opencl:1"),
        ("webgpu:0", DeviceName("webgpu", 0), "webgpu:0"),
        ("cuda:2", DeviceName("cuda", 2), "cuda:2"),
        ("mock", DeviceName("mock", 0), "mock:0"),
        ("browser", DeviceName("browser"), "browser"),
        ("browser@8123", DeviceName("browser", port=8123), "browser@8123"),
        ("ws://phone:9000/opencl", DeviceName("ws", 0, "phone", 9000, "opencl:0"), "ws://phone:9000/opencl:0"),
        ("ws://[::1]:9/cpu?token=a%26b", DeviceName("ws", 0, "::1", 9, "cpu"), "ws://[::1]:9/cpu"),
    ],
)
def test_names_parse_and_print(text: str, name: DeviceName, printed: str) -> None:
    assert parse_device_name(text) == name
    assert str(parse_device_name(text)) == printed
    assert parse_device_name(printed) == name


def test_token_is_taken_and_never_printed() -> None:
    name = parse_device_name("ws://h:1/opencl:0?token=sesame%2Fopen")
    assert name.token == "sesame/open"
    assert "sesame" not in str(name) + repr(name) + f"{name!s}"


@pytest.mark.parametrize(
    "text",
    [
        "", "gpu", "opencl:", "opencl:x", "opencl:-1", "OPENCL", "cpu:0", "browser@0", "browser@70000", "opencl:1 ",
        "ws://h/opencl", "ws://h:99999/opencl", "ws://h:1/", "ws://h:1/browser", "ws://h:1/ws://h:2/cpu",
        "ws://secret@h:1/cpu", "ws://h:1/cpu?token=secret&x=1", "ws://h:1/cpu?token=secret&token=secret",
        "ws://h:1/cpu?token=secret#f", "ws://h:x/cpu?token=secret", "opencl?token=secret", "opencl:٣",
    ],
)  # fmt: skip
def test_other_texts_are_refused_without_their_secrets(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device_name(text)
    assert "secret" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        name = parse_device_name(text)
    except UsageError:
        return
    assert parse_device_name(str(name)) == name


@pytest.mark.parametrize("text", ["cuda", "mock"])
def test_kinds_without_a_driver_say_so(text: str) -> None:
    for opener in (open_device, open_in_process):
        with pytest.raises(EnvironmentProblem, match="cannot be opened"):
            opener(text)


@pytest.mark.parametrize("text", ["browser", "browser@8123", "ws://h:1/cpu?token=secret"])
def test_devices_elsewhere_are_not_opened_in_this_process(text: str) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be opened in this process") as caught:
        open_in_process(text)
    assert "secret" not in str(caught.value)
