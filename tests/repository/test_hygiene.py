"""What must not be in the repository: addresses of package registries or downloads, and paths of one machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN = {
    # Where packages come from is each user's configuration.
    "registry or download host": re.compile(
        r"\b(pypi|pythonhosted|npmjs|anaconda|huggingface)\.(org|com|co)\b|download\.[a-z-]+\.(org|com)"
        r"|https?://[^\s\"'<>]+\.(whl|zip|tgz|tar\.[a-z0-9]+|safetensors|gguf)\b"
        r"|--(extra-)?index-url|--find-links",
    ),
    "path of one machine": re.compile(r"(?<![\w.$}~*-])/(work|root|home|Users)/[\w.-]"),
}

#: Texts that must name what they forbid.
EXEMPT = {Path("tests/repository/test_hygiene.py")}


def offences(text: str) -> list[tuple[str, str]]:
    return [(kind, match[0]) for kind, pattern in FORBIDDEN.items() for match in pattern.finditer(text)]


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := Path(name)) not in EXEMPT]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_tracked_files_name_no_registry_and_no_machine() -> None:
    found: list[str] = []
    for path in tracked_files():
        if not (ROOT / path).is_file():
            continue
        text = (ROOT / path).read_bytes().decode("utf-8", errors="replace")
        found += [f"{path}: {kind}: {match}" for kind, match in offences(text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "see https://" + "pypi.org/project/torch",
        "https://example.org/files/torch-2.13.0.whl",
        "pip install --index-url=x",
        "open('/" + "root/model.pt2')",
        "cd /" + "home/someone",
    ],
)
def test_the_patterns_catch_what_they_name(text: str) -> None:
    assert offences(text)


@pytest.mark.parametrize("text", ["https://arxiv.org/abs/2404.09151", "src/work/x", "network/", "$HOME/home/x", "/usr"])
def test_the_patterns_let_the_rest_through(text: str) -> None:
    assert not offences(text)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-cpu.lock", "requirements-cuda.lock"])
def test_locks_hold_names_versions_and_hashes_only(name: str) -> None:
    entry = re.compile(r"[a-z0-9.-]+==[\w.+!]+( ; [^/@]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    header, _, body = (ROOT / name).read_text().partition("\n")
    assert header.startswith("#")
    assert body
    assert entry.sub("", body) == ""
