"""JSON Schemas of the documents that commands write: ``python -m tapestry.cli.schema docs/schema``.

Not here: the documents (documents).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import cast

import msgspec

from tapestry.cli.documents import DOCUMENTS, VERSION

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """File name → the text of its schema, for every command with ``--json``."""
    return {f"{name}.json": _text(name, kind) for name, kind in DOCUMENTS.items()}


def _text(name: str, kind: type[msgspec.Struct]) -> str:
    (root,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    document = {
        "$schema": _DIALECT,
        "title": f"tapestry {name} --json, version {VERSION}",
        **cast("dict[str, object]", _nullable(root)),
        "$defs": _nullable(components),
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _nullable(schema: object) -> object:
    """JSON has no infinity: every number may be null."""
    if isinstance(schema, list):
        return [_nullable(entry) for entry in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: _nullable(value) for key, value in cast("dict[str, object]", schema).items()}
    return {**found, "type": ["number", "null"]} if found.get("type") == "number" else found


def main(folder: Path) -> None:
    """Write all schemas into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schema"))
