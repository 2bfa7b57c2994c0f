"""All our converters: they go before those of TVM's importer."""

from __future__ import annotations

from tapestry.backends.tvm.adapter.arrays import ARRAYS
from tapestry.backends.tvm.adapter.elementwise import ELEMENTWISE
from tapestry.backends.tvm.adapter.half import CASTS
from tapestry.backends.tvm.adapter.values import Converter

CONVERTERS: dict[str, Converter] = {**ELEMENTWISE, **ARRAYS, **CASTS}
