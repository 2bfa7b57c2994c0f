"""What the ONNX Runtime backend hands to its loader. No torch, no onnxruntime."""

from __future__ import annotations

import msgspec

from tapestry.backends.host.value import Value


class OnnxPayload(msgspec.Struct, frozen=True):
    """An ONNX model without its weights.

    ``model``: a ModelProto whose constants are initialisers with external data that is nowhere: the loader supplies
    them by name. ``constants``: the places among ``inputs`` of the region's constants; those that the model does not
    read are in no initialiser (``unread``, by name). ``samples`` are stored activations for int8 with fixed ranges:
    one entry a sample, each the bytes of the inputs that are not constant.
    """

    model: bytes
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: tuple[int, ...]
    unread: frozenset[str]
    threads: int
    precision: str
    samples: tuple[tuple[bytes, ...], ...] = ()
