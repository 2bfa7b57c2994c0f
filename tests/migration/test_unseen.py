"""Nothing that was moved may run on the source unseen: with those nodes forbidden there, everything still runs."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.faulty_backend import Fault, FaultyBackend
from support.migrating import blocks, inputs, move
from tapestry.program.graph import Call


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (Fault("wrong", "aten.gelu.default"),),
        (Fault("wrong", "aten.layer_norm.default", after="aten.add.Tensor"), Fault("unsupported", "aten.tanh.default")),
    ],
)
def test_moved_nodes_never_run_on_the_source(faults: tuple[Fault, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = blocks()
    moved = move(FaultyBackend(*faults))
    on_target = {node for region in moved.outcome.placement.regions for node in region.nodes}
    assert on_target
    ran: list[str] = []
    import tapestry.placement.run as run_module

    run_calls = run_module.run_calls

    def watched(calls: tuple[Call, ...], *rest: object) -> None:
        for call in calls:
            assert call.name not in on_target, f"{call.name} ran on the source"
            ran.append(call.name)
        run_calls(calls, *rest)  # type: ignore[arg-type]

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("the whole program ran on the source")

    monkeypatch.setattr(run_module, "run_calls", watched)
    monkeypatch.setattr(run_module, "run_program", forbidden)
    (x,) = inputs()[0]
    with torch.no_grad():
        assert torch.allclose(moved.outcome.executable(x), model(x), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    assert set(ran) == moved.staying()


def test_eager_itself_is_not_called_for_moved_nodes() -> None:
    """The same, seen from PyTorch: no operator of the program is dispatched in this thread outside of the device."""
    moved = move(FaultyBackend())
    (x,) = inputs()[0]
    seen: list[str] = []
    device = moved.device

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
        ) -> object:
            if not device.inside:
                seen.append(str(func))
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    with Spy():
        moved.outcome.executable(x)
    computing = {node.op.removesuffix(".default") for node in blocks()[1].nodes}
    assert not [name for name in seen if name.removesuffix(".default") in computing], seen
