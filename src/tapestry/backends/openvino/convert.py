"""A graph as OpenVINO's intermediate representation, by its PyTorch front end."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import openvino as ov
import torch

from tapestry.backends.host.exported import export_graph
from tapestry.backends.host.operators import operators_kept
from tapestry.backends.host.refusal import refused
from tapestry.backends.openvino.load import TYPES
from tapestry.errors import CompileError, UnsupportedError
from tapestry.program.graph import Graph
from tapestry.program.serial import dtype_name


def to_ir(graph: Graph) -> tuple[bytes, bytes]:
    """The two files of the IR, float types as they are. UnsupportedError with the front end's reason.

    Parameters are the graph's inputs by name; the converter leaves out those that nothing reads. CompileError when the
    conversion has changed their names or the number of outputs, UnsupportedError when it has changed a result's type.
    """
    program = export_graph(graph)
    _say_nothing()
    with torch.no_grad(), operators_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model: Any = ov.convert_model(program)
        except Exception as error:
            raise refused("openvino.convert_model", error) from error
    _check(model, graph)
    with tempfile.TemporaryDirectory() as folder:
        xml, data = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.save_model(model, xml, compress_to_fp16=False)
        return xml.read_bytes(), data.read_bytes()


def _check(model: Any, graph: Graph) -> None:
    names = [entry.name for entry in graph.inputs]
    strange = [name for node in model.get_parameters() if (name := node.get_friendly_name()) not in names]
    if strange or len(model.outputs) != len(graph.outputs):
        raise CompileError(
            f"convert_model gives {len(model.outputs)} outputs and the inputs {', '.join(strange) or 'of the graph'}, "
            f"expected {len(graph.outputs)} and some of {', '.join(names)}"
        )
    for place, (output, ref) in enumerate(zip(model.outputs, graph.outputs, strict=True)):
        expected, kind = dtype_name(graph.spec(ref).dtype), output.get_element_type()
        if kind != TYPES[expected]:
            raise UnsupportedError(
                f"openvino.convert_model makes result {place} {kind.get_type_name()}, expected {expected}"
            )


def _say_nothing() -> None:
    """Stop the converter from reporting its use to its makers, by the stand-in it has for a missing telemetry."""
    from openvino.tools.ovc import telemetry_stub, telemetry_utils

    telemetry_utils.tm = telemetry_stub
