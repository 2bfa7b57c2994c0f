"""What the host of a browser device serves: the files of static/, and the headers that keep the page to itself.

Not here: sockets, and who may have them (host.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

#: Nothing from elsewhere is loaded, nothing is run but these files, and nobody may frame the page. The last three
#: isolate it, which gives it clocks of 5 microseconds instead of 100.
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Page:
    """One file as it is sent."""

    content_type: str
    body: bytes


@cache
def pages() -> Mapping[str, Page]:
    """Every file by its path: exactly these are served. ``/`` is index.html."""
    root = resources.files("tapestry.runtime.browser") / "static"
    found = {f"/{path}": _page(path, file) for path, file in _files(root)}
    return {"/": found["/index.html"], **found}


def _page(path: str, file: Traversable) -> Page:
    return Page(f"{_TYPES[path.rpartition('.')[2]]}; charset=utf-8", file.read_bytes())


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _files(entry, f"{path}/")
        elif path.rpartition(".")[2] in _TYPES:
            yield path, entry
