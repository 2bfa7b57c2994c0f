"""Activations of regions, recorded from real runs and stored by content: what int8 with fixed ranges is set from.

One stored file holds those of one region, for which the caller vouches, or of many, found by the graph's content. Not
here: quantising (the loaders do it, when they have the weights), and the activations in a suite (suite.calibration).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import platformdirs
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from tapestry.backends.cache import replace_file
from tapestry.backends.host.declare import Body
from tapestry.backends.host.value import Value
from tapestry.errors import FormatError, UnsupportedError, UsageError
from tapestry.program.graph import Call, Graph, Ref
from tapestry.program.inputs import InputSet
from tapestry.program.interpret import run_program, start_values
from tapestry.program.program import tensor_bytes
from tapestry.program.region import Region
from tapestry.program.serial import dtype_name, dumps

#: Samples kept; the ranges of more change little.
MOST = 16

Sample = tuple[torch.Tensor, ...]


def default_folder() -> Path:
    """Where samples are kept: under the user's cache directory."""
    return Path(platformdirs.user_cache_dir("tapestry")) / "calibration"


def activations(region: Region, inputs: Sequence[InputSet]) -> list[Sample]:
    """The values of a region's inputs that are not constant, in order, in each call of these input sets."""
    return [sample for entry in inputs for sample in _of_set(region, entry)][:MOST]


def _of_set(region: Region, inputs: InputSet) -> Iterator[Sample]:
    program = region.program
    wanted = [ref for ref in region.inputs if not program.is_constant(ref)]
    state = {name: program.tensors[name].clone() for name in program.state_names & program.tensors.keys()}
    for call in inputs.calls:
        values = start_values(program, program.bind(call.args, dict(call.kwargs)), state)
        seen = {ref: value.clone() for ref in wanted if isinstance(value := values.get(ref), torch.Tensor)}

        def observe(
            node: Call, args: tuple[object, ...], kwargs: Mapping[str, object], results: tuple[object, ...],
            found: dict[Ref, torch.Tensor] = seen,
        ) -> None:  # fmt: skip
            for item, result in enumerate(results):
                ref = Ref(node.name, item)
                if ref in wanted and isinstance(result, torch.Tensor):
                    found[ref] = result.clone()

        after = run_program(program, values, observe=observe)
        for written in program.state:
            value = after.get(written.result)
            if written.name in state and isinstance(value, torch.Tensor):
                state[written.name] = value.clone()
        yield tuple(seen[ref] for ref in wanted)


def store(samples: Sequence[Sample], folder: Path | None = None) -> str:
    """Keep one region's samples; gives the name that ``calibration`` refers to them by. UsageError for none."""
    return store_regions({"": samples}, folder)


def store_regions(samples: Mapping[str, Sequence[Sample]], folder: Path | None = None) -> str:
    """Keep the samples of many regions, by ``region_digest``; gives the one name for all. UsageError for none."""
    tensors = {
        ".".join(filter(None, (region, str(number), str(place)))): tensor.contiguous().clone()
        for region, entries in samples.items()
        for number, sample in enumerate(entries[:MOST])
        for place, tensor in enumerate(sample)
    }
    if not tensors:
        raise UsageError("expected one sample or more to calibrate with, got none")
    data = save_tensors(tensors)
    name = hashlib.sha256(data).hexdigest()
    target = folder or default_folder()
    target.mkdir(parents=True, exist_ok=True)
    replace_file(target / name, data)
    return name


def region_digest(graph: Graph) -> str:
    """What the samples of a region are found by: the content of its graph."""
    return hashlib.sha256(dumps(graph)).hexdigest()


def read(name: str, body: Body, folder: Path | None = None) -> tuple[tuple[bytes, ...], ...]:
    """The samples' bytes for a region, one entry an input that is not constant; none where there is no such input.

    UsageError or FormatError when they do not fit; UnsupportedError when they are of other regions.
    """
    inputs = body.varying()
    if not name or not inputs:
        return ()
    data = _checked(name, folder or default_folder())
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise FormatError(f"calibration {name[:12]} is damaged: {error}; record it again") from error
    own = _of_region(name, tensors, region_digest(body.whole))
    return tuple(_sample(name, own, number, inputs) for number in range(len({key.partition(".")[0] for key in own})))


def _of_region(name: str, tensors: Mapping[str, torch.Tensor], region: str) -> dict[str, torch.Tensor]:
    """``number.place`` → tensor: those stored for the region, or those stored without saying for which."""
    split = [(*key.rpartition(".")[0].rpartition(".")[::2], key) for key in tensors]
    own = {key.removeprefix(f"{of}."): tensors[key] for of, _, key in split if of in ("", region)}
    if not own:
        others = len({of for of, _, _ in split})
        raise UnsupportedError(f"calibration {name[:12]} has no activations of this region, only of {others} others")
    return own


def _sample(name: str, tensors: Mapping[str, torch.Tensor], number: int, inputs: Sequence[Value]) -> tuple[bytes, ...]:
    sample: list[bytes] = []
    for place, value in enumerate(inputs):
        tensor = tensors.get(f"{number}.{place}")
        if tensor is None or tuple(tensor.shape) != value.shape or dtype_name(tensor.dtype) != value.dtype:
            have = "nothing" if tensor is None else f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
            raise UsageError(
                f"calibration {name[:12]}: input {place} expects {value.dtype}{list(value.shape)}, it has {have}"
            )
        sample.append(bytes(tensor_bytes(tensor)))
    return tuple(sample)


def is_stored(name: str, folder: Path | None = None) -> bool:
    """Whether samples are kept under this name."""
    return len(name) == 64 and name.isalnum() and ((folder or default_folder()) / name).is_file()


def _checked(name: str, folder: Path) -> bytes:
    if not is_stored(name, folder):
        raise UsageError(f"there is no calibration {name!r} in {folder}; record it with host.calibration.store")
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != name:
        raise FormatError(f"calibration {name[:12]} is damaged; record it again")
    return data
