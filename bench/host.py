"""Latency of the backends on this machine's processor, next to calling each runtime directly without Tapestry.

Run it as ``python bench/host.py [--models …] [--backends …] [--rounds N] [--json FILE]`` on an otherwise idle
machine. One process, one input, float32, one thread budget. Every round calls everything once, in a random
order, so that what disturbs the machine disturbs all alike. ``direct`` is the runtime's own fastest way to be called,
with its own conversion of the same model; ``region`` is the whole graph as one region, submitted to the host device
with its inputs in place; ``call`` is the executable called like the model. Two overheads are given: ``around``, the
median time that a region spends outside of what its loader returned, and ``over direct``, the median of region minus
direct over pairs of calls, which also holds what the two conversions of the model differ by. These pairs are called
apart from the others, since what another runtime leaves in the caches costs more than what is measured; the standard
error of that median stands beside it. BERT-base and ResNet-50 come from their transformers configurations, with random
weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: its threads sleep between calls

import torch

from tapestry.backends.base import Backend
from tapestry.backends.compiler import Compiler
from tapestry.backends.host.threads import thread_budget
from tapestry.backends.registry import get_backend
from tapestry.models.load import load_model
from tapestry.placement.build import Builder
from tapestry.placement.placement import place_on
from tapestry.program.capture import capture
from tapestry.runtime.device import Device
from tapestry.runtime.open import open_in_process
from tapestry.runtime.resident import Resident

BACKENDS = ("onnxruntime", "openvino", "inductor", "executorch")
Call = Callable[[], object]


@dataclass(frozen=True)
class Model:
    """A module and its arguments, all positional."""

    name: str
    module: torch.nn.Module
    args: tuple[torch.Tensor, ...]


class Positional(torch.nn.Module):
    """A model whose keyword arguments are given by position, and whose result is its first tensor."""

    def __init__(self, inner: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.inner = inner
        self.names = names

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        result = self.inner(**dict(zip(self.names, args, strict=True)))
        return result if isinstance(result, torch.Tensor) else result[0]


def minilm() -> Model:
    """The demo model with its real weights, on the first of its inputs."""
    loaded = load_model("demo:minilm")
    call = loaded.inputs[0].calls[0]
    names = tuple(call.kwargs)
    if call.args:
        return Model("minilm", loaded.module, tuple(call.args))
    return Model("minilm", Positional(loaded.module, names), tuple(call.kwargs.values()))


def bert_base() -> Model:
    """BERT-base on 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False).eval()
    ids = torch.randint(0, 30_000, (1, 128))
    return Model("bert-base", Positional(model, ("input_ids", "attention_mask")), (ids, torch.ones_like(ids)))


def resnet50() -> Model:
    """ResNet-50 on one image of 224 by 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig()).eval()
    return Model("resnet-50", Positional(model, ("pixel_values",)), (torch.randn(1, 3, 224, 224),))


MODELS: dict[str, Callable[[], Model]] = {"minilm": minilm, "bert-base": bert_base, "resnet-50": resnet50}


def direct_onnxruntime(model: Model) -> Call:
    import onnxruntime

    from tapestry.backends.onnxruntime.load import session_options

    exported: Any = torch.onnx.export(model.module, model.args, dynamo=True, verbose=False)
    session: Any = onnxruntime.InferenceSession(
        exported.model_proto.SerializeToString(), session_options(thread_budget()), ["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for entry, tensor in zip(session.get_inputs(), model.args, strict=True):
        binding.bind_cpu_input(entry.name, tensor.numpy())
    for entry in session.get_outputs():
        binding.bind_output(entry.name)
    return lambda: session.run_with_iobinding(binding)


def direct_openvino(model: Model) -> Call:
    import openvino

    from tapestry.backends.openvino.load import settings

    program = torch.export.export(model.module, model.args)
    compiled: Any = openvino.compile_model(openvino.convert_model(program), "CPU", settings(thread_budget(), "float32"))
    request = compiled.create_infer_request()
    for place, tensor in enumerate(model.args):
        request.set_input_tensor(place, openvino.Tensor(tensor.numpy(), shared_memory=True))
    return lambda: request.infer(share_outputs=True)


def direct_inductor(model: Model) -> Call:
    import torch._inductor.config

    torch._inductor.config.freezing = True  # noqa: SLF001
    compiled = torch.compile(model.module)
    compiled(*model.args)
    return lambda: compiled(*model.args)


def direct_executorch(model: Model) -> Call:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    program = torch.export.export(model.module, model.args)
    lowered: Any = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    data = lowered.to_executorch().buffer
    loaded = Runtime.get().load_program(data)
    method: Any = loaded.load_method("forward")
    return lambda: (data, loaded, method.execute(model.args))


DIRECT: dict[str, Callable[[Model], Call]] = {
    "onnxruntime": direct_onnxruntime, "openvino": direct_openvino, "inductor": direct_inductor,
    "executorch": direct_executorch,
}  # fmt: skip


def placed(model: Model, backend: Backend, stack: ExitStack) -> Placed:
    """The model as one region of a backend. Checked against eager."""
    program = capture(model.module, model.args, name=model.name)
    device = open_in_process("cpu")
    stack.callback(device.close)
    compiler = stack.enter_context(Compiler())
    builder = Builder(program, {"cpu": Resident(device)}, compiler)
    placement = place_on(program, [program.placeable], backend, backend.options()[0], "cpu")
    executable = stack.enter_context(builder.build(placement))
    got, want = executable(*model.args), model.module(*model.args)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
    (step,) = executable.layout.bound_steps
    slots, layout = executable.layout.slots[step.where], executable.layout
    refs = step.step.region.inputs
    inputs = [slots.buffer(ref) if (ref, step.where) in layout.decls else None for ref in refs]
    outputs = [slots.buffer(ref) for ref in step.step.region.outputs]
    commands = step.bound.commands(inputs, outputs, step.step.tag)
    return Placed(lambda: device.submit(commands), lambda: executable(*model.args), device)


@dataclass(frozen=True)
class Placed:
    """One region on the host device, alone and as the executable around it."""

    region: Call
    call: Call
    device: Device

    def around(self, repeats: int) -> float:
        """Median seconds that a region spends outside of its runtime's own call."""
        spent: list[float] = []
        inner: list[float] = []

        def timed(run: Any, inputs: Any, outputs: Any) -> None:
            begin = time.perf_counter()
            run(inputs, outputs)
            inner.append(time.perf_counter() - begin)

        self.region()
        programs: Any = vars(self.device)["_programs"]
        for program in programs.values():
            run = program.ready.run
            program.ready = replace(program.ready, run=partial(timed, run))
        for _ in range(repeats):
            begin = time.perf_counter()
            self.region()
            spent.append(time.perf_counter() - begin - inner[-1])
        for program in programs.values():
            program.ready = None
        return statistics.median(spent)


def measure(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after two rounds to warm up."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    with torch.no_grad():
        for number in range(rounds + 2):
            for name in order.sample(names, len(names)):
                begin = time.perf_counter()
                calls[name]()
                spent = time.perf_counter() - begin
                if number >= 2:
                    seconds[name].append(spent)
    return seconds


def difference(one: Call, other: Call, pairs: int) -> tuple[float, float]:
    """Median seconds that one call takes longer than another, called in turn, and the standard error of that median.

    The error is that of a median of normal noise, sqrt(pi / 2) sigma / sqrt(n), with sigma from the quartiles, which
    are 1.349 sigma apart.
    """
    spent = measure({"one": one, "other": other}, pairs)
    found = [a - b for a, b in zip(spent["one"], spent["other"], strict=True)]
    low, middle, high = statistics.quantiles(found)
    return middle, math.sqrt(math.pi / 2 / pairs) * (high - low) / 1.349


def bench(model: Model, backends: Iterable[str], rounds: int) -> dict[str, Any]:
    """Median milliseconds of everything, and for each backend the overhead of a region in microseconds."""
    calls: dict[str, Call] = {"eager": lambda: model.module(*model.args)}
    on_host: dict[str, Placed] = {}
    with ExitStack() as stack:
        for name in backends:
            backend = get_backend(name)
            state = backend.availability()
            if not state.ready:
                print(f"{name}: {state.reason}")
                continue
            on_host[name] = placed(model, backend, stack)
            calls[f"{name} region"], calls[f"{name} call"] = on_host[name].region, on_host[name].call
            calls[f"{name} direct"] = DIRECT[name](model)
        seconds = measure(calls, rounds)
        over = {name: difference(calls[f"{name} region"], calls[f"{name} direct"], 3 * rounds) for name in on_host}
        around = {name: entry.around(rounds) for name, entry in on_host.items()}
    found: dict[str, Any] = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    for name, spent in around.items():
        found[f"{name} around us"] = spent * 1e6
        found[f"{name} over direct us"] = over[name][0] * 1e6
        found[f"{name} standard error us"] = over[name][1] * 1e6
        found[f"{name} allowed us"] = 30 + 0.02 * statistics.median(seconds[f"{name} direct"]) * 1e6
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.set_num_threads(thread_budget())
    results: dict[str, dict[str, Any]] = {}
    for name in options.models:
        results[name] = bench(MODELS[name](), options.backends, options.rounds)
        print(f"\n{name}, {thread_budget()} threads, median of {options.rounds} rounds")
        for what, value in results[name].items():
            print(f"  {what:28} {value:10.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
