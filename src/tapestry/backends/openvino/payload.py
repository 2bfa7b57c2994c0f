"""What the OpenVINO backend hands to its loader. No torch, no openvino."""

from __future__ import annotations

import msgspec

from tapestry.backends.host.value import Value


class OpenVinoPayload(msgspec.Struct, frozen=True):
    """A model as OpenVINO's intermediate representation, without its weights.

    ``xml`` and ``data`` are the two files of the IR; the region inputs that it reads are its parameters, by name, and
    the loader turns those at ``constants`` into constants. ``samples`` are stored activations for int8 with fixed
    ranges: one entry a sample, each the bytes of the inputs that are not constant.
    """

    xml: bytes
    data: bytes
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: tuple[int, ...]
    threads: int
    precision: str
    samples: tuple[tuple[bytes, ...], ...] = ()
