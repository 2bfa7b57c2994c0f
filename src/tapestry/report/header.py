"""What a report says of the run itself, beside its result. Plain data; nothing here is measured."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ReportHeader:
    """Where a report comes from.

    ``model`` is the name as the user gave it; ``title`` defaults to it. ``seconds`` is the wall time of the command,
    None when unknown. ``date`` should carry a time zone. ``environment`` maps a component to its version or setting.
    ``facts`` are further (label, value) pairs, shown in the order given. All text is escaped on the page.
    """

    model: str
    date: dt.datetime
    title: str = ""
    command: str = ""
    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: tuple[tuple[str, str], ...] = ()
