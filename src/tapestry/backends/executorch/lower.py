"""A graph with its weights as an ExecuTorch program for XNNPACK, and a program as a method that can be called."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tapestry.backends.host.exported import export_with_constants
from tapestry.backends.host.operators import operators_kept
from tapestry.backends.host.refusal import refused, words
from tapestry.errors import UnsupportedError
from tapestry.program.graph import Graph


def lower(graph: Graph, constants: Sequence[torch.Tensor]) -> bytes:
    """The program's bytes. UnsupportedError with the reason of what refused it."""
    exported = export_with_constants(graph, constants)
    with torch.no_grad(), operators_kept(), quiet():
        try:
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
            from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
            from executorch.exir.passes import MemoryPlanningPass

            edge: Any = to_edge_transform_and_lower(
                exported,
                partitioner=[XnnpackPartitioner()],
                # Operators outside the core set are ExecuTorch's to refuse, when the program is loaded.
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
            # Inputs are used where they are, not copied into the program's own memory.
            planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
            config: Any = ExecutorchBackendConfig(memory_planning_pass=planning)
            return bytes(edge.to_executorch(config).buffer)
        except Exception as error:
            raise refused("ExecuTorch", error) from error


def open_method(program: bytes) -> tuple[Any, Any]:
    """The program's only method, and the program, which must live as long as it. UnsupportedError with the reason."""
    try:
        with quiet():
            from executorch.runtime import Runtime

        loaded: Any = Runtime.get().load_program(program)
        return loaded.load_method("forward"), loaded
    except Exception as error:
        raise UnsupportedError(f"ExecuTorch does not load the program: {words(error)}") from error


@contextmanager
def quiet() -> Generator[None]:
    """Without what its passes tell of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
