"""The activations in a carved suite, stored for backends that calibrate: each operator's region finds its own.

Not here: the store, and the activations of larger regions (backends.host.calibration).
"""

from __future__ import annotations

from pathlib import Path

from tapestry.backends.host.calibration import Sample, region_digest, store_regions
from tapestry.errors import UsageError
from tapestry.suite.case import Suite


def store_activations(suite: Suite, folder: Path | None = None) -> str:
    """Keep what the carved cases' inputs held; gives the name that an option's ``calibration`` refers to them by.

    Derived cases are no activations of a model: they are left out. UsageError for a suite without activations.
    """
    samples: dict[str, list[Sample]] = {}
    for case in suite.cases:
        if case.base:
            continue
        graph = case.load_graph()
        given = zip(graph.inputs, suite.inputs(case), strict=True)
        sample = tuple(tensor for entry, tensor in given if not entry.constant)
        samples.setdefault(region_digest(graph), []).append(sample)
    if not any(sample for entries in samples.values() for sample in entries):
        raise UsageError(f"the suite of {suite.info.program} holds no activations to calibrate with")
    return store_regions(samples, folder)
