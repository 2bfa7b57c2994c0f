"""From a decomposed FX graph to a Relax module: TVM's own importer, with converters of ours where it is wrong.

Not here: lowering (lower.py), and which operators are decomposed before (decompose.py, no TVM).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tapestry.backends.tvm.adapter.converters import CONVERTERS
from tapestry.backends.tvm.adapter.fusion import FusionLimit
from tapestry.backends.tvm.adapter.narrow import wrapped
from tapestry.backends.tvm.targets import DeviceTarget
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.serial import dtype_name


class Importer(ExportedProgramImporter):
    """TVM's importer over an FX graph whose nodes carry ``meta["val"]``, without an ExportedProgram around it."""

    def __init__(self, target: DeviceTarget) -> None:
        super().__init__()
        self._target = target
        self._fusion = FusionLimit()

    def type_name(self, dtype: torch.dtype) -> str:
        """TVM's name of the type that holds a torch dtype on the target. A bool stays one inside of kernels."""
        return "bool" if dtype == torch.bool else self._target.stored(dtype_name(dtype))

    def import_graph(self, module: fx.GraphModule) -> Any:
        """The Relax module; ``main`` takes the placeholders and returns a tuple of the results.

        Raises UnsupportedError for an operator without a converter, CompileError with TVM's reason.
        """
        nodes = list(module.graph.nodes)
        missing = sorted({name_of(node) for node in nodes if node.op == "call_function" and not self.takes(node)})
        if missing:
            raise UnsupportedError(f"TVM's importer has no {', '.join(missing)}")
        params = {node: self._parameter(node) for node in nodes if node.op == "placeholder"}
        self.env.update(params)
        self.block_builder = relax.BlockBuilder()
        with self.block_builder.function(name="main", params=list(params.values())):
            with self.block_builder.dataflow():
                for node in nodes:
                    if node.op == "call_function":
                        self.env[node] = self._convert(node)
                results = [self._checked(node) for node in nodes[-1].args[0]]
                output = self.block_builder.emit_output(relax.Tuple(results))
            self.block_builder.emit_func_output(output)
        return self.block_builder.get()

    def takes(self, node: fx.Node) -> bool:
        """Whether some converter takes the node's operator."""
        return self.takes_named(name_of(node))

    def takes_named(self, name: str) -> bool:
        """Whether some converter takes an operator, named as ``add.Tensor``."""
        return name in CONVERTERS or name in self.convert_map

    def _parameter(self, node: fx.Node) -> Any:
        value = node.meta["val"]
        return relax.Var(node.name, relax.TensorType(list(value.shape), self.type_name(value.dtype)))

    def _convert(self, node: fx.Node) -> Any:
        name = name_of(node)
        try:
            own = CONVERTERS.get(name)
            value = self._emitted(own(self, node) if own is not None else self.convert_map[name](node))
            value = self._emitted(wrapped(self, node, value))
            return self._fusion.limited(self.block_builder, value)
        except UnsupportedError:
            raise
        except Exception as error:
            raise CompileError(f"TVM's importer failed on {name}: {type(error).__name__}: {_first(error)}") from error

    def _emitted(self, value: Any) -> Any:
        if isinstance(value, relax.Expr) and not isinstance(value, relax.Var | tvm.ir.GenericConst):
            return self.block_builder.emit(value)
        return value

    def _checked(self, node: fx.Node) -> Any:
        """A result, whose shape and dtype must be what eager gives."""
        value: Any = self.env[node]
        want = node.meta["val"]
        shape = tuple(int(size) for size in value.ty.shape)
        dtype = str(value.ty.dtype)
        if shape != tuple(want.shape) or dtype != self.type_name(want.dtype):
            raise CompileError(
                f"TVM's importer gives {name_of(node)} as {dtype}{list(shape)}, "
                f"expected {self.type_name(want.dtype)}{list(want.shape)}"
            )
        return value


def name_of(node: fx.Node) -> str:
    """``add.Tensor`` for ``aten.add.Tensor``: the key that TVM's importer uses."""
    if node.target is operator.getitem:
        return "getitem"
    return str(getattr(node.target, "__name__", node.target))


def _first(error: Exception) -> str:
    """The telling line of a TVM error, which otherwise holds a native stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def version() -> str:
    """TVM's version."""
    return str(tvm.__version__)
