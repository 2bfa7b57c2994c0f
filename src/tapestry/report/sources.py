"""How a source line reads on a page: short enough for a column, never ambiguous.

Source texts come as ``FILE:LINE (MODULE)``; anything else is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+)(?: \((?P<module>[^()]*)\))?$")
_INSTALLED = re.compile(r"^.*?[/\\](?:site|dist)-packages[/\\]")
_SHOWN_FOLDERS = 2


@dataclass(frozen=True)
class SourceLine:
    """``name`` for a narrow column (file name and line), ``path`` for a wide one, ``full`` as it was given."""

    name: str
    path: str
    full: str
    module: str


def source_line(text: str) -> SourceLine:
    """Take a source text apart; an installed package's path starts at the package."""
    match = _PLACE.match(text)
    if match is None:
        return SourceLine(text, text, text, "")
    file, line = match["file"], match["line"]
    parts = re.split(r"[/\\]", file)
    installed = _INSTALLED.sub("", file)
    path = installed if installed != file else "/".join(parts[-_SHOWN_FOLDERS - 1 :])
    return SourceLine(f"{parts[-1]}:{line}", f"{path}:{line}", f"{file}:{line}", match["module"] or "")
