"""Tables at 80 columns: titles whole, numbers never cut, the widest text broken."""

from __future__ import annotations

import pytest

from tapestry.cli import console
from tapestry.cli.console import block, out, progress, table


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_long_operator_names_break_and_numbers_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["aten.scaled_dot_product_attention.default.of.a.very.long.name", "12", "5 pass", "3.9e-12", "1.5e-15"]] * 3
    table(
        "A title that is longer than the table " * 2, ("operator", "cases", "verdicts", "max", "NMSE"), rows, (1, 3, 4)
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for cell in ("12", "5 pass", "3.9e-12", "1.5e-15", "cases", "verdicts"):
        assert cell in text
    assert "aten.scaled_dot_product_attention" in text


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table("T", ("what",), [["pip install 'tapestry-ml[bringup]'"], ["expected [3, 8], got [red]"]])
    block("fail: x[0]", [("reason", "shape [bold] " + "word " * 40), ("empty", "")])
    out.print("[dim]")
    text = capsys.readouterr().out
    for word in ("[bringup]", "[red]", "x[0]", "[bold]", "[dim]"):
        assert word in text
    assert "empty" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 16.0, 17.0, 40.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with progress() as tell:
        for done in range(1, 5):
            tell("replaying", done, 9)
    written = capsys.readouterr()
    assert written.err.splitlines() == ["replaying: 2 of 9 after 16 s", "replaying: 4 of 9 after 40 s"]
    assert not written.out
