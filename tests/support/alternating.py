"""How much two backends on one device slow each other: each in a row against both in turn.

Run as ``python -m support.alternating OPENER ONE OTHER ALLOWED`` (``worker`` or ``in-process``) it prints the ratios of
its tries as JSON, in a process that opens the device before torch is imported. It stops at a try that is good enough:
others who use the machine can only make a ratio of quartiles look worse than it is, time and again.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from tapestry.runtime.open import open_device, open_in_process

if TYPE_CHECKING:
    from tapestry.runtime.device import Command, Device

#: Rounds of a try, calls of each in a row in a round, and the seconds after which there is no further try.
ROUNDS, CALLS, SECONDS = 12, 6, 90.0


def slowdowns(device: Device, names: tuple[str, str], allowed: float) -> list[float]:
    """For each try, by how much the one that suffers more is slower next to the other than alone."""
    runs = [_region(device, name) for name in names]
    end = time.monotonic() + SECONDS
    found = [_slowdown(device, runs)]
    while found[-1] >= allowed and time.monotonic() < end:
        found.append(_slowdown(device, runs))
    return found


def _slowdown(device: Device, runs: list[list[Command]]) -> float:
    """Lower quartiles of calls alone and in turn, a few of each after the other, so that both see the same machine."""
    alone: list[list[float]] = [[] for _ in runs]
    turns: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for place, commands in enumerate(runs):
            alone[place] += [_seconds(device, commands) for _ in range(CALLS)][1:]
        for _ in range(CALLS - 1):
            for place, commands in enumerate(runs):
                turns[place].append(_seconds(device, commands))
    return max(_quartile(both) / _quartile(one) for both, one in zip(turns, alone, strict=True))


def _quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def _seconds(device: Device, commands: list[Command]) -> float:
    begin = time.perf_counter()
    device.submit(commands)
    device.sync()
    return time.perf_counter() - begin


def _region(device: Device, name: str) -> list[Command]:
    """Eight products of 64 x 512 by 512 x 512 as one region, checked against eager; its commands."""
    import torch

    from tapestry.backends.compiler import Compiler
    from tapestry.backends.registry import get_backend
    from tapestry.placement.build import Builder
    from tapestry.placement.placement import place_on
    from tapestry.program.capture import capture
    from tapestry.runtime.resident import Resident

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).eval().requires_grad_(False)
    x = torch.randn(64, 512)
    program, backend = capture(model, (x,)), get_backend(name)
    placement = place_on(program, [program.placeable], backend, backend.options()[0], "cpu")
    with Compiler() as compiler:
        executable = Builder(program, {"cpu": Resident(device)}, compiler).build(placement)
    torch.testing.assert_close(executable(x), model(x), rtol=0, atol=1e-4)
    (step,) = executable.layout.bound_steps
    slots, decls = executable.layout.slots[step.where], executable.layout.decls
    inputs = [slots.buffer(ref) if (ref, step.where) in decls else None for ref in step.step.region.inputs]
    return step.bound.commands(inputs, [slots.buffer(ref) for ref in step.step.region.outputs])


def main(opener: str, one: str, other: str, allowed: str) -> None:
    """Print the ratios."""
    device: Device = open_device("cpu") if opener == "worker" else open_in_process("cpu")
    assert "torch" not in sys.modules
    print(json.dumps(slowdowns(device, (one, other), float(allowed))))
    device.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
