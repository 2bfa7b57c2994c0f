"""Program: the captured graph with its parameters, state, inputs and outputs.

Not here: how a model becomes a program (capture), how a program runs (interpret), regions of it (region).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import msgspec
import torch
from torch.utils import _pytree as pytree

from tapestry.errors import InputError
from tapestry.program import traits
from tapestry.program.graph import Argument, Call, Ref, TensorSpec, operands
from tapestry.program.serial import encode_argument, encode_spec, overload_name


@dataclass(frozen=True)
class Source:
    """Where in the user's model a node comes from. ``line`` is 0 when unknown; ``module`` is the submodule's path."""

    file: str
    line: int
    code: str
    module: str
    module_type: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else "unknown line"
        return f"{place} ({self.module or 'model'})"


@dataclass(frozen=True)
class Origin:
    """The call of the exported graph before decomposition: what the user wrote, nearly.

    ``args`` and ``kwargs`` name values of that graph: ``Ref.name`` is another origin, a program input or a tensor.
    """

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]


@dataclass(frozen=True)
class Node:
    """One ATen call of the program. ``call.name`` is the stable id: module path, operator, occurrence."""

    call: Call
    origin: str
    source: Source

    @property
    def id(self) -> str:
        return self.call.name

    @property
    def op(self) -> str:
        return overload_name(self.call.target)


@dataclass(frozen=True)
class ProgramInput:
    """A leaf of the caller's arguments. ``spec`` is None for a constant (int, str, None …), kept in ``value``."""

    name: str
    path: str
    spec: TensorSpec | None
    value: object = None


@dataclass(frozen=True)
class State:
    """A buffer (or caller's tensor) that the program writes: read as ``name``, written with the value ``result``."""

    name: str
    result: Ref
    spec: TensorSpec


@dataclass(frozen=True)
class Alias:
    """An output that shares memory in eager: a view of ``base`` (a Ref, or the index of an earlier output)."""

    base: Ref | int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class ProgramOutput:
    """A leaf of the result. ``value`` is a Ref, or a constant that is returned as it is (then ``spec`` is None)."""

    value: Ref | Argument
    spec: TensorSpec | None
    alias: Alias | None = None


@dataclass(frozen=True)
class Program:
    """A captured model. Values are Refs: ``input:x``, ``param:…``, ``buffer:…``, ``const:…`` or a node's id.

    ``tensors`` holds parameters, buffers and constants by value name (state buffers with their initial content).
    """

    name: str
    inputs: tuple[ProgramInput, ...]
    tensors: Mapping[str, torch.Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[ProgramOutput, ...]
    state: tuple[State, ...]
    origins: Mapping[str, Origin]
    in_spec: pytree.TreeSpec = field(repr=False)
    out_spec: pytree.TreeSpec = field(repr=False)
    #: Inputs that were one and the same tensor at capture: a model may ask ``a is b``, and export has the answer in it.
    same: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Node id → place in execution order."""
        return {node.id: place for place, node in enumerate(self.nodes)}

    @cached_property
    def state_names(self) -> frozenset[str]:
        return frozenset(state.name for state in self.state)

    @cached_property
    def users(self) -> dict[Ref, tuple[str, ...]]:
        """Value → ids of the nodes that read it, in order. Program outputs and state are not counted."""
        found: dict[Ref, dict[str, None]] = {}
        for node in self.nodes:
            for ref in operands(node.call):
                found.setdefault(ref, {})[node.id] = None
        return {ref: tuple(ids) for ref, ids in found.items()}

    @cached_property
    def results(self) -> frozenset[Ref]:
        """The values that leave the program: outputs and new state."""
        values = {output.value for output in self.outputs if isinstance(output.value, Ref)}
        return frozenset(values | {state.result for state in self.state})

    @cached_property
    def folded(self) -> frozenset[str]:
        """Ids of the nodes that give the same in every run: no input, state, random or uninitialised value above."""
        constant = {name for name in self.tensors if name not in self.state_names}
        found: set[str] = set()
        for node in self.nodes:
            fixed = all(ref.name in constant or ref.name in found for ref in operands(node.call))
            if fixed and node.call.outputs and not traits.keeps_its_place(node.call):
                found.add(node.id)
        return frozenset(found)

    @cached_property
    def random_before(self) -> dict[str, str]:
        """Random node → the random node before it: they draw from one generator, so their order must stay."""
        random = [node.id for node in self.nodes if traits.is_random(node.call)]
        return dict(zip(random[1:], random[:-1], strict=True))

    @cached_property
    def compute(self) -> frozenset[str]:
        """Ids of the compute nodes: a floating-point result, neither a pure view nor folded."""
        return frozenset(
            node.id
            for node in self.nodes
            if node.id not in self.folded
            and not traits.is_view(node.call.target)
            and any(spec is not None and spec.dtype.is_floating_point for spec in node.call.outputs)
        )

    @cached_property
    def placeable(self) -> tuple[str, ...]:
        """Ids of the nodes that a placement may move, in order: all but folded, random and stride-reading ones."""
        return tuple(
            node.id for node in self.nodes if node.id not in self.folded and not traits.keeps_its_place(node.call)
        )

    def spec(self, ref: Ref) -> TensorSpec:
        """The spec of a value; KeyError for one the program does not have."""
        node = self.by_id.get(ref.name)
        if node is not None:
            spec = node.call.outputs[ref.item]
            if spec is None:
                raise KeyError(ref)
            return spec
        if ref.name in self.tensors:
            return TensorSpec.of(self.tensors[ref.name])
        return self._input_specs[ref.name]

    def is_constant(self, ref: Ref) -> bool:
        """Whether a value is the same in every run: an unwritten tensor, or the result of a folded node."""
        if ref.name in self.folded:
            return True
        return ref.name in self.tensors and ref.name not in self.state_names

    @cached_property
    def _input_specs(self) -> dict[str, TensorSpec]:
        return {entry.name: entry.spec for entry in self.inputs if entry.spec is not None}

    @cached_property
    def graph_hash(self) -> str:
        """A hash of everything but the content of the tensors."""
        document = {
            "inputs": [[entry.name, encode_spec(entry.spec), repr(entry.value)] for entry in self.inputs],
            "tensors": {name: encode_spec(TensorSpec.of(tensor)) for name, tensor in self.tensors.items()},
            "nodes": [
                [
                    node.id,
                    node.op,
                    encode_argument(node.call.args),
                    [[key, encode_argument(value)] for key, value in node.call.kwargs],
                    [encode_spec(spec) for spec in node.call.outputs],
                ]
                for node in self.nodes
            ],
            "outputs": [[encode_argument(output.value), encode_spec(output.spec)] for output in self.outputs],
            "state": [[state.name, state.result.name, state.result.item] for state in self.state],
        }
        return hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()

    @cached_property
    def content_hash(self) -> str:
        """A hash of the graph and the content of every tensor: two models with other weights differ."""
        total = hashlib.sha256(self.graph_hash.encode())
        for name in sorted(self.tensors):
            total.update(name.encode())
            total.update(tensor_digest(self.tensors[name]).encode())
        return total.hexdigest()

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The caller's arguments by input name. InputError for another structure, shape, dtype, device or constant."""
        leaves, spec = pytree.tree_flatten((tuple(args), self._in_order(kwargs)))
        if spec != self.in_spec:
            raise InputError(_structure(self.in_spec, args, kwargs, spec))
        for entry, leaf in zip(self.inputs, leaves, strict=True):
            _check_leaf(entry, leaf)
        bound: dict[str, object] = {entry.name: leaf for entry, leaf in zip(self.inputs, leaves, strict=True)}
        self._check_sharing(bound)
        return bound

    def _check_sharing(self, bound: Mapping[str, object]) -> None:
        """InputError where which arguments are the same tensor matters, and differs from capture."""
        for group in self.same:
            first, *others = (cast("torch.Tensor", bound[name]) for name in group)
            if not all(other is first or torch.equal(other, first) for other in others):
                raise InputError(
                    f"arguments {', '.join(group)} were one tensor at capture, and the program may rest on that: "
                    "got different ones; capture the model with tensors of their own"
                )
        written = [name for name in self.state_names if name in bound]
        for name in written:
            storage = cast("torch.Tensor", bound[name]).untyped_storage().data_ptr()
            for other, leaf in bound.items():
                if other == name or not isinstance(leaf, torch.Tensor) or leaf.numel() == 0:
                    continue
                if leaf.untyped_storage().data_ptr() == storage:
                    raise InputError(f"{name} and {other} share memory, and the program writes to {name}")

    def _in_order(self, kwargs: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments in the order of capture, which a caller need not know."""
        order = cast("list[str]", self.in_spec.child(1).context)
        if set(order) != set(kwargs):
            return dict(kwargs)
        return {name: kwargs[name] for name in order}


def _structure(
    expected: pytree.TreeSpec, args: tuple[object, ...], kwargs: Mapping[str, object], got: pytree.TreeSpec
) -> str:
    """How the arguments differ from those captured: their number, their names, or what is nested in one."""
    positional, keywords = expected.child(0), expected.child(1)
    count, names = positional.num_children, cast("list[str]", keywords.context)
    if len(args) != count or set(names) != set(kwargs):
        wanted = f"{count} positional arguments" + (f" and the keywords {', '.join(names)}" if names else "")
        given = f"{len(args)}" + (f" and the keywords {', '.join(kwargs)}" if kwargs else "")
        return f"expected {wanted}, got {given}"
    for place in range(count):
        if positional.child(place) != got.child(0).child(place):
            wanted = _kind(positional.child(place))
            return (
                f"argument {place} is nested in another way: expected {wanted}, got {_kind(got.child(0).child(place))}"
            )
    wrong = next((k for k in range(len(names)) if keywords.child(k) != got.child(1).child(k)), 0)
    wanted, found = _kind(keywords.child(wrong)), _kind(got.child(1).child(wrong))
    return f"argument {names[wrong]!r} is nested in another way: expected {wanted}, got {found}"


def _kind(spec: pytree.TreeSpec) -> str:
    """What a part of the arguments is: one value, or a container of so many."""
    if spec.is_leaf():
        return "one value"
    kind = getattr(spec.type, "__name__", str(spec.type))
    return f"a {kind} of {spec.num_children}"


def _check_leaf(entry: ProgramInput, leaf: object) -> None:
    if entry.spec is None:
        if type(leaf) is not type(entry.value) or repr(leaf) != repr(entry.value):
            raise InputError(
                f"argument {entry.path}: the program was captured for the constant {entry.value!r}, got {leaf!r}; "
                "capture it again for another one"
            )
        return
    if not isinstance(leaf, torch.Tensor):
        raise InputError(f"argument {entry.path}: expected a tensor, got {type(leaf).__name__}")
    if tuple(leaf.shape) != entry.spec.shape or leaf.dtype != entry.spec.dtype:
        raise InputError(
            f"argument {entry.path}: expected {entry.spec.dtype} {list(entry.spec.shape)}, "
            f"got {leaf.dtype} {list(leaf.shape)}; capture the model again for these"
        )
    if leaf.device.type != "cpu" or leaf.layout != torch.strided:
        place = f"{leaf.layout} on {leaf.device}"
        raise InputError(f"argument {entry.path}: expected a dense tensor on the CPU, got {place}")


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements of a tensor in row-major order, as bytes; no copy when it is contiguous already."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")  # pyright: ignore[reportArgumentType]


def tensor_digest(tensor: torch.Tensor) -> str:
    """A hash of dtype, shape and elements; strides do not count."""
    total = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    total.update(tensor_bytes(tensor))
    return total.hexdigest()
