"""An OpenVINO model in int8 by NNCF: fixed ranges from samples, or, without any, compressed weights."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from typing import Any


def quantised(model: Any, samples: Sequence[Sequence[Any]]) -> Any:
    """The model quantised; ``samples`` hold the inputs' arrays in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from nncf.telemetry import wrapper

        sender: Any = wrapper.telemetry
        sender._impl = None  # noqa: SLF001 (it would report its use to its makers)
        log = logging.getLogger("nncf")
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            # Its progress bars go to standard output, which is not theirs.
            with contextlib.redirect_stdout(io.StringIO()):
                return _run(model, samples)
        finally:
            log.setLevel(before)


def _run(model: Any, samples: Sequence[Sequence[Any]]) -> Any:
    import nncf

    if not samples:
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    data = nncf.Dataset([list(sample) for sample in samples])
    # Ranges that hold every sample. NNCF's default, the mean of the samples' ranges, cuts off carved extremes.
    whole = RangeEstimatorParametersSet.MINMAX
    parameters = nncf.AdvancedQuantizationParameters(
        activations_range_estimator_params=whole, weights_range_estimator_params=whole
    )
    return nncf.quantize(
        model, data, subset_size=len(samples), fast_bias_correction=True, advanced_parameters=parameters
    )
