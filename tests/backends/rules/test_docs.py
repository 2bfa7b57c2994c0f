"""The guide's Python runs as it stands: its blocks marked ``python run``, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

from tapestry.backends import rules

GUIDE = Path(__file__).parents[3] / "docs" / "rules.md"
BLOCK = re.compile(r"^```python run\n(.*?)^```$", re.M | re.S)


def test_the_guides_python_runs() -> None:
    text = GUIDE.read_text()
    names: dict[str, object] = {}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python")
    for block in blocks:
        # Padded so that a failure names the guide's own line.
        code = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(code, str(GUIDE), "exec"), names)  # noqa: S102


def test_the_guide_names_what_a_backends_author_writes() -> None:
    text = GUIDE.read_text()
    types = {
        "Allowed",
        "CallRule",
        "Expression",
        "LeftOut",
        "Match",
        "MatchView",
        "Matchable",
        "Op",
        "Predicate",
        "Rule",
    }
    written = set(rules.__all__) - types - {"RuleError", "Selection", "When"}
    assert [name for name in sorted(written) if name not in text] == []
