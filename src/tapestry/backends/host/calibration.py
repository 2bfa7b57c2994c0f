"""Activations of a region, recorded from real runs and stored by content: what int8 with fixed ranges is set from.

Not here: quantising (the loaders do it, when they have the weights).
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
from tapestry.backends.host.value import Value
from tapestry.errors import FormatError, UsageError
from tapestry.program.graph import Call, Ref
from tapestry.program.inputs import InputSet
from tapestry.program.interpret import run_program, start_values
from tapestry.program.program import tensor_bytes
from tapestry.program.region import Region
from tapestry.program.serial import dtype_name

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
    """Keep samples; gives the name that an option's ``calibration`` refers to them by. UsageError for none."""
    if not samples:
        raise UsageError("expected one sample or more to calibrate with, got none")
    tensors = {
        f"{number}.{place}": tensor.contiguous().clone()
        for number, sample in enumerate(samples[:MOST])
        for place, tensor in enumerate(sample)
    }
    data = save_tensors(tensors)
    name = hashlib.sha256(data).hexdigest()
    target = folder or default_folder()
    target.mkdir(parents=True, exist_ok=True)
    replace_file(target / name, data)
    return name


def read(name: str, inputs: Sequence[Value], folder: Path | None = None) -> tuple[tuple[bytes, ...], ...]:
    """The samples' bytes, one entry an input that is not constant. UsageError or FormatError when they do not fit."""
    if not name:
        return ()
    data = _checked(name, folder or default_folder())
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise FormatError(f"calibration {name[:12]} is damaged: {error}; record it again") from error
    count = len({key.partition(".")[0] for key in tensors})
    samples: list[tuple[bytes, ...]] = []
    for number in range(count):
        sample: list[bytes] = []
        for place, value in enumerate(inputs):
            tensor = tensors.get(f"{number}.{place}")
            if tensor is None or tuple(tensor.shape) != value.shape or dtype_name(tensor.dtype) != value.dtype:
                have = "nothing" if tensor is None else f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
                raise UsageError(
                    f"calibration {name[:12]}: input {place} expects {value.dtype}{list(value.shape)}, it has {have}"
                )
            sample.append(bytes(tensor_bytes(tensor)))
        samples.append(tuple(sample))
    return tuple(samples)


def _checked(name: str, folder: Path) -> bytes:
    file = folder / name
    if len(name) != 64 or not name.isalnum() or not file.is_file():
        raise UsageError(f"there is no calibration {name!r} in {folder}; record it with host.calibration.store")
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != name:
        raise FormatError(f"calibration {name[:12]} is damaged; record it again")
    return data
