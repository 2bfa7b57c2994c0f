"""The program's graph as the page's script reads it: a module tree with nodes, compact and drawn on demand.

Everything a reader sees (badges, worst errors, formatted numbers) is decided here; the script only draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tapestry.migration.result import Attempt, NodeRecord
from tapestry.report import numbers
from tapestry.report.sources import source_line

#: A node as a row of the page's data: id, op, source (indices into ``ops`` and ``sources``), place, region,
#: compute (0 or 1), verdict, error, what it reads (a node's index, or the name of a parameter or an input), its history
#: (an index into ``histories``), why it stays.
NodeRow = tuple[str, int, int, str, str, int, str, str, list[int | str], int, str]

#: What was tried in which way, as a reader is told it: where, verdict, and what came of it.
AttemptRow = tuple[str, str, str]

_HOW = {
    "cases": "alone",
    "program": "in the whole program",
    "merge": "compiled with others",
    "kernel": "as a hand-written kernel",
}

#: So many folded nodes in a row share one row of the tree.
_LONG_RUN = 4


@dataclass
class _Module:
    """A module under construction. ``entries`` keeps submodules and node indices in the program's order."""

    name: str
    path: str
    entries: list[_Module | int] = field(default_factory=list)
    children: dict[str, _Module] = field(default_factory=dict)


def graph_data(nodes: Sequence[NodeRecord]) -> dict[str, object]:
    """Strings are kept once; the tree's leaves are indices into ``nodes``. Safe for JSON: no NaN, no infinities."""
    ops: dict[str, int] = {}
    sources: dict[tuple[str, str], int] = {}
    histories: dict[tuple[AttemptRow, ...], int] = {}
    places = {record.node: place for place, record in enumerate(nodes)}
    rows: list[NodeRow] = []
    for record in nodes:
        line = source_line(record.source)
        rows.append(
            (
                record.node,
                ops.setdefault(record.op, len(ops)),
                sources.setdefault((line.name, line.full), len(sources)),
                record.place,
                record.region,
                int(record.compute),
                record.verdict,
                numbers.error(record.max_rel),
                [places.get(name, name) for name in record.reads],
                histories.setdefault(tuple(map(_attempt, record.tried)), len(histories)),
                record.why,
            )
        )
    tree = _badges(_compact(_gather_folded(_tree(nodes), nodes)), nodes)
    return {
        "ops": list(ops),
        "sources": list(sources),
        "histories": [list(entry) for entry in histories],
        "nodes": rows,
        "tree": tree,
    }


def _attempt(entry: Attempt) -> AttemptRow:
    where = f"{entry.backend}, {_HOW.get(entry.how, entry.how)}"
    words = [numbers.plural(entry.cases, "case")] if entry.cases else []
    if entry.max_rel is not None:
        words.append(f"worst error {numbers.error(entry.max_rel)}")
    return where, entry.verdict, "; ".join([*words, *([entry.reason] if entry.reason else [])])


def place_counts(nodes: Sequence[NodeRecord]) -> dict[str, int]:
    """How many nodes ended in each place."""
    counts = {"target": 0, "source": 0, "folded": 0}
    for record in nodes:
        counts[record.place] = counts.get(record.place, 0) + 1
    return counts


def _tree(nodes: Sequence[NodeRecord]) -> _Module:
    root = _Module("", "")
    for place, record in enumerate(nodes):
        module = root
        for name in record.module.split(".") if record.module else ():
            if name not in module.children:
                child = _Module(name, f"{module.path}.{name}" if module.path else name)
                module.children[name] = child
                module.entries.append(child)
            module = module.children[name]
        module.entries.append(place)
    return root


def _gather_folded(module: _Module, nodes: Sequence[NodeRecord]) -> _Module:
    """Put long runs of folded nodes into a row of their own: nothing runs there, and a reader can skip them."""
    entries: list[_Module | int] = []
    for folded, run in groupby(
        module.entries, key=lambda entry: isinstance(entry, int) and nodes[entry].place == "folded"
    ):
        part = [_gather_folded(entry, nodes) if isinstance(entry, _Module) else entry for entry in run]
        if folded and len(part) >= _LONG_RUN:
            entries.append(_Module(f"{numbers.count(len(part))} folded nodes", module.path, part))
        else:
            entries += part
    return _Module(module.name, module.path, entries)


def _compact(module: _Module) -> _Module:
    """Join a module that holds nothing but one submodule with it: ``encoder.layer`` is one row."""
    entries = [_compact(entry) if isinstance(entry, _Module) else entry for entry in module.entries]
    if module.path and len(entries) == 1 and isinstance(entries[0], _Module):
        only = entries[0]
        return _Module(f"{module.name}.{only.name}", only.path, only.entries)
    return _Module(module.name, module.path, entries)


def _badges(module: _Module, nodes: Sequence[NodeRecord]) -> dict[str, object]:
    """A module as the script reads it: name, path, nodes on the target of those that are not folded, worst error."""
    inside = [nodes[place] for place in _leaves(module)]
    counted = [record for record in inside if record.place != "folded"]
    return {
        "name": module.name,
        "path": module.path,
        "on": sum(record.place == "target" for record in counted),
        "total": len(counted),
        "bad": sum(record.verdict not in ("", "pass", "undefined") for record in counted),
        "worst": numbers.error(_worst(inside)),
        "kids": [_badges(entry, nodes) if isinstance(entry, _Module) else entry for entry in module.entries],
    }


def _leaves(module: _Module) -> list[int]:
    found: list[int] = []
    for entry in module.entries:
        found += _leaves(entry) if isinstance(entry, _Module) else [entry]
    return found


def _worst(records: Sequence[NodeRecord]) -> float | None:
    """The largest error of these nodes, NaN above all; None where no node has one."""
    found = [record.max_rel for record in records if record.max_rel is not None]
    if any(math.isnan(value) for value in found):
        return math.nan
    return max(found, default=None)
