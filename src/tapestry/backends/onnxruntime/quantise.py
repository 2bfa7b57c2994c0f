"""An ONNX model with its weights, matrix products and convolutions quantised to int8 by onnxruntime.quantization.

Weights are symmetric int8 by channel, activations uint8; with samples the ranges of activations are fixed, without
them each call takes its own.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static

from tapestry.runtime.drivers.host import processor_features

#: Without these, uint8 times int8 saturates in 16 bits on x86, unless weights have 7 bits (onnxruntime's reduce_range).
_WIDE = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"})


class _Samples(CalibrationDataReader):
    """The recorded activations, one after the other."""

    def __init__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Any:
        return next(self._left, None)


def quantised(model: bytes, weights: Mapping[str, bytes], samples: Sequence[Mapping[str, Any]]) -> bytes:
    """The quantised model's bytes. ``weights`` are raw data by initialiser name, ``samples`` arrays by input name."""
    parsed: Any = onnx.load_from_string(model)
    for entry in parsed.graph.initializer:
        if entry.name in weights:
            entry.raw_data = weights[entry.name]
            entry.data_location = onnx.TensorProto.DEFAULT
            del entry.external_data[:]
    narrow = not (_WIDE & processor_features())
    log = logging.getLogger()
    before = log.level
    log.setLevel(logging.ERROR)  # it recommends a preprocessing that ONNX Runtime does by itself when it loads
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "model.onnx"), Path(folder, "int8.onnx")
            _save_folded(parsed.SerializeToString(), source)
            if samples:
                quantize_static(
                    source, target, _Samples(samples), per_channel=True, reduce_range=narrow,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                    op_types_to_quantize=["MatMul", "Gemm", "Conv"],
                )  # fmt: skip
            else:
                quantize_dynamic(
                    source, target, per_channel=True, reduce_range=narrow, weight_type=QuantType.QInt8,
                    op_types_to_quantize=["MatMul", "Gemm"],
                )  # fmt: skip
            return target.read_bytes()
    finally:
        log.setLevel(before)


def _save_folded(model: bytes, target: Path) -> None:
    """The model with its constants folded: the quantiser takes only products whose weight is an initialiser."""
    options: Any = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
