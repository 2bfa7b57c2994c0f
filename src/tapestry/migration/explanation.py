"""What explaining a node found: plain data, free of torch. Not here: finding it (explain)."""

from __future__ import annotations

import msgspec

from tapestry.numerics.judgement import Metrics


class BackendAnswer(msgspec.Struct, frozen=True):
    """What one backend says of the node.

    ``answer`` is ``right``, ``wrong``, ``unsupported`` (a rule or the device says no), ``compile error``,
    ``in a pattern`` (a rule takes it together with its neighbours), ``crashed``, ``timeout``, ``undefined``,
    ``untested`` (it compiles, no case reached it), ``other device`` or ``missing``; ``reason`` says it in words.
    ``launches`` is how many kernels the node takes.
    """

    backend: str
    answer: str
    reason: str
    cases: int = 0
    verdicts: dict[str, int] = {}
    worst: Metrics | None = None
    launches: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """One node, and every backend's answer. ``place`` is ``source`` when it must stay there (``why``), ``folded``
    when it is a constant, else ``free``.
    """

    node: str
    op: str
    origin: str
    source: str
    code: str
    module: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: str
    why: str
    alike: tuple[str, ...]
    device: str
    backends: tuple[BackendAnswer, ...]
