"""What commands print and how: tables and results to standard output, progress and errors to standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

#: Texts are shown as they are: square brackets in a reason or a path are no markup.
out = Console(highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)


#: Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 15.0


@contextmanager
def progress(bars: bool = True) -> Generator[Callable[[str, int, int], None]]:
    """Progress bars on a terminal, one per kind of work; elsewhere a line now and then, so that a log shows it too.

    Without ``bars`` lines on a terminal, too: nothing may be printed to it while bars are shown.
    """
    if not (bars and err.is_terminal):
        yield _Lines().tell
        return
    columns = (
        TextColumn("{task.description:>12}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=True) as shown:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(what, total=total)
            shown.update(tasks[what], completed=done, total=total)

        yield tell


class _Lines:
    """Writes how far work is, at most once in ``LINE_SECONDS``: short work writes nothing."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            err.print(f"{what}: {done} of {total} after {now - self._begin:.0f} s")


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], numbers: Sequence[int] = ()
) -> None:
    """Print a table under its title; ``numbers`` are the columns to be set flush right.

    Without column names there is no heading. On a narrow terminal the widest column of text breaks; no other is cut.
    """
    shown = Table(header_style="bold", box=None, pad_edge=False, show_header=any(columns))
    widths = [
        max([cell_len(column), *(cell_len(str(row[place])) for row in rows)]) for place, column in enumerate(columns)
    ]
    texts = [place for place in range(len(columns)) if place not in numbers]
    breaks = max(texts, key=widths.__getitem__, default=None)
    for place, column in enumerate(columns):
        shown.add_column(
            column,
            justify="right" if place in numbers else "left",
            overflow="fold",
            min_width=None if place == breaks else widths[place],
        )
    for row in rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(Text(title, style="bold"))
    out.print(shown)
    out.print()


def block(head: str, lines: Sequence[tuple[str, str]]) -> None:
    """Print an entry: a first line, then labelled lines whose text goes on under itself where it is long."""
    out.print(Text(head, style="bold"), soft_wrap=False)
    shown = Table.grid(padding=(0, 1))
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for label, text in lines:
        if text:
            shown.add_row(Text(f"  {label}"), Text(text))
    out.print(shown)


def number(value: float | None, digits: int = 2) -> str:
    """A measured number, short: ``5.4e-06``, ``0.12``, ``1.7e+07``, ``inf`` or ``-`` for none."""
    if value is None:
        return "-"
    if math.isinf(value) or math.isnan(value):
        return str(value)
    return f"{value:.{digits}g}"


def size(nbytes: float) -> str:
    """Bytes for people: ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def percent(share: float) -> str:
    """A fraction as a percentage, never rounded up to 100 %."""
    return "100 %" if share >= 1 else f"{math.floor(share * 1000) / 10:.1f} %"
