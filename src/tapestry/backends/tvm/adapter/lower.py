"""From a Relax module to kernels' source text and a flat list of launches. TVM's device runtimes are not used.

Not here: import (importer.py); what becomes of the plan (compile.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from torch import fx
from tvm import relax, s_tir, tirx
from tvm.s_tir import dlight
from tvm.tirx.build import split_host_device_mods

from tapestry.backends.tvm.adapter.flatten import flatten
from tapestry.backends.tvm.adapter.importer import Importer
from tapestry.backends.tvm.adapter.source import kernels_of
from tapestry.backends.tvm.options import TvmOptions
from tapestry.backends.tvm.plan import Kernel, Plan
from tapestry.backends.tvm.targets import DeviceTarget
from tapestry.errors import CompileError, TapestryError
from tapestry.runtime.device import Limits


@dataclass(frozen=True)
class Lowered:
    """Host functions after the split (how kernels are launched), and the device functions' source."""

    main: Any
    hosts: dict[str, Any]
    kernels: tuple[Kernel, ...]
    source: str


def build(module: fx.GraphModule, target: DeviceTarget, options: TvmOptions, limits: Limits) -> Plan:
    """Compile a decomposed graph with at least one result.

    Raises UnsupportedError for an operator without a converter, CompileError with TVM's own reason.
    """
    try:
        tvm_target = tvm.target.Target({"kind": target.kind})
        lowered = _lower(Importer(target).import_graph(module), tvm_target, target, options, limits)
        return flatten(lowered.main, lowered.hosts, lowered.kernels, lowered.source)
    except TapestryError:
        raise
    except Exception as error:
        raise CompileError(f"TVM: {type(error).__name__}: {_reason(error)}") from error


def _schedules(options: TvmOptions) -> list[Any]:
    gpu = dlight.gpu
    if options.schedule == "fallback":
        return [gpu.Fallback()]
    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


#: TVM names a fused kernel after all its parts; drivers use the name for files, which have a limit of 255 bytes.
_NAME_LENGTH = 40


def _scheduled(function: Any, options: TvmOptions) -> Any:
    """The function with a GPU schedule; dlight's rules assert on some reductions, which the fallback takes."""
    apply: Any = dlight.ApplyDefaultSchedule
    alone = tvm.IRModule({"main": function})
    try:
        return apply(*_schedules(options))(alone)["main"]
    except Exception:
        return apply(dlight.gpu.Fallback())(alone)["main"]


#: TVM's op_pattern of a function that nothing is fused with.
_OPAQUE = 8


def _single_terms_alone(mod: Any) -> Any:
    """Nothing is fused behind a reduction over one term: TVM moves it into both halves, and adds a bias twice."""
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and _reduces_one_term(function):
            mod.update_func(variable, function.with_attr("op_pattern", _OPAQUE))
    return mod


def _reduces_one_term(function: Any) -> bool:
    schedule: Any = s_tir.Schedule(function)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        axes = [axis for axis in schedule.get(block).iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        if axes and all(int(axis.dom.extent) == 1 for axis in axes):
            return True
    return False


def _lower(mod: Any, tvm_target: Any, target: DeviceTarget, options: TvmOptions, limits: Limits) -> Lowered:
    passes = relax.transform
    with tvm_target:
        mod = tvm.transform.Sequential(
            [
                passes.DecomposeOpsForInference(),
                passes.CanonicalizeBindings(),
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
            ]
        )(mod)
        mod = tvm.transform.Sequential(
            [
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.RewriteDataflowReshape(),
                passes.DeadCodeElimination(),
            ]
        )(_single_terms_alone(mod))
        found = {v.name_hint: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        short = {name: f"{name[:_NAME_LENGTH]}_{place}" for place, name in enumerate(sorted(found))}
        functions = {
            short[name]: _scheduled(function.with_attr("global_symbol", short[name]), options)
            for name, function in sorted(found.items())
        }
    main = mod["main"]
    if not functions:
        return Lowered(main, {}, (), "")
    capture = _KeepSplit()
    pipelines: Any = tirx.get_default_tir_pipeline(tvm_target)
    pipeline, _, finish_device = pipelines
    with tvm.transform.PassContext(opt_level=3, instruments=[capture]):
        bound = tirx.transform.BindTarget(tvm_target.with_host(tvm.target.Target("llvm")))(tvm.IRModule(functions))
        final = pipeline(bound)
    split = {variable.name_hint: function for variable, function in capture.module.functions.items()}
    hosts = {name: split[renamed] for name, renamed in short.items()}
    _, devices = split_host_device_mods(final)
    device = {
        variable: function
        for part in devices.values()
        for variable, function in finish_device()(part).functions.items()
    }
    kernels, source = kernels_of(device, next(iter(devices)), target, limits)
    return Lowered(main, hosts, kernels, source)


@tvm.ir.instrument.pass_instrument
class _KeepSplit:
    """Keeps the module as it is right after host and device are told apart: the launches are still readable."""

    def __init__(self) -> None:
        self.module: Any = None

    def run_after_pass(self, mod: Any, info: Any) -> None:
        if info.name == "tirx.SplitHostDevice":
            self.module = mod


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
