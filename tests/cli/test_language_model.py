"""``tapestry migrate`` of a language model: both of its programs move, and their tokens are generate's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command import Tapestry
from support.huggingface_files import TINY_LLAMA, save

pytest.importorskip("transformers", reason="needs the extra hf")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_prefill_and_decode_move_and_say_what_generate_says(tapestry: Tapestry, tmp_path: Path) -> None:
    save(tmp_path / "model", "LlamaForCausalLM", "LlamaConfig", **{**TINY_LLAMA, "eos_token_id": None})
    found, report, placement = (tmp_path / name for name in ("found.json", "found.html", "placement.json"))
    given = ["migrate", f"hf:{tmp_path / 'model'}", "--to", "cpu", "--backend", "eager", "--variants", "0"]
    files = ["--json", str(found), "--report", str(report), "-o", str(placement), "--journal", str(tmp_path / "j")]
    ended = tapestry(*given, *files)
    assert ended.code == 0, ended.err
    document = json.loads(found.read_text())
    (name,) = document["programs"]
    prefill = document["programs"][name]
    assert name == "prefill"
    for result in (document, prefill):
        assert result["coverage"]["compute_nodes"] == 1.0
        assert result["check"]["good"]
    assert prefill["program"]["state"] == document["program"]["state"] == 2
    tokens = document["check"]["tokens"]
    assert tokens["equal"] == tokens["compared"] > 0
    assert "Program prefill" in ended.out
    assert "prefill" in (tmp_path / "found.prefill.html").read_text()
    stored = json.loads((tmp_path / "placement.prefill.json").read_text())
    assert stored["graph_hash"] != json.loads(placement.read_text())["graph_hash"]
    again = tapestry(*given, *files)
    assert again.code == 0, again.err
    resumed = json.loads(found.read_text())
    assert all(step["resumed"] for result in (resumed, resumed["programs"]["prefill"]) for step in result["steps"])
