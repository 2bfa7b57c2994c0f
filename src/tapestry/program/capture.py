"""From a PyTorch model and example inputs to a Program: torch.export, functionalisation, explicit state and aliases.

Not here: loading models (models), and how eager memory sharing is observed (aliasing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from tapestry.errors import CaptureError, TapestryError, UsageError
from tapestry.program import traits
from tapestry.program.aliasing import Observed, observe
from tapestry.program.eager_check import check_against_eager
from tapestry.program.exporting import (
    FunctionModule,
    check_arguments,
    explained,
    export_functional,
    refuse_foreign_kinds,
)
from tapestry.program.graph import Argument, Call, Ref, TensorSpec
from tapestry.program.origins import read_origins, read_source
from tapestry.program.program import Node, Origin, Program, ProgramInput, ProgramOutput, State
from tapestry.program.untouched import untouched

#: Calls without a meaning in inference; dropout is handled by its origin.
_DROPPED = {f"aten::{name}" for name in ("_assert_tensor_metadata", "alias", "detach", "lift_fresh_copy", "lift")}
#: What is written, by the kind of output that holds the new value.
_WRITTEN = {
    OutputKind.USER_INPUT_MUTATION: "input",
    OutputKind.BUFFER_MUTATION: "buffer",
    OutputKind.PARAMETER_MUTATION: "param",
}


def capture(
    model: torch.nn.Module | Callable[..., object],
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    name: str = "",
) -> Program:
    """Capture a model as a Program for the shapes and dtypes of the example inputs.

    ``model`` may be any nn.Module or a function of tensors; it is run once in eager mode on copies of the inputs,
    to see which outputs share memory. The module is as before afterwards: attributes, buffers, parameters, training
    mode and the random generator. Training mode is kept as it is.
    Raises CaptureError, naming the line of the model where torch.export can name one; UsageError for a model that
    cannot be called and for arguments that are no tuple and dict.
    """
    if dynamic_shapes is not None:
        raise CaptureError("a program has fixed shapes: expected dynamic_shapes=None; capture once per shape instead")
    if not callable(model):
        raise UsageError(f"expected a module or a function to capture, got {type(model).__name__}")
    check_arguments(args, kwargs or {})
    module = model if isinstance(model, torch.nn.Module) else FunctionModule(model)
    given = dict(kwargs or {})
    label = name or (type(model).__name__ if isinstance(model, torch.nn.Module) else _function_name(model))
    with untouched(module):
        refuse_foreign_kinds(module)
        before, after = export_functional(module, tuple(args), given)
    return _Reader(module, before, after, label).program(tuple(args), given)


def _same(inputs: Sequence[ProgramInput], leaves: Sequence[object]) -> tuple[tuple[str, ...], ...]:
    """The inputs that were given the same tensor, in groups of two and more."""
    groups: dict[int, list[str]] = {}
    for entry, leaf in zip(inputs, leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            groups.setdefault(id(leaf), []).append(entry.name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _function_name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class _Reader:
    """Reads the decomposed ExportedProgram into a Program."""

    def __init__(self, module: torch.nn.Module, before: ExportedProgram, after: ExportedProgram, name: str) -> None:
        self.module = module
        self.before = before
        self.after = after
        self.name = name
        self.values: dict[torch.fx.Node, Ref | Argument] = {}
        self.names_taken: dict[str, int] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.inputs: list[ProgramInput] = []
        signature = after.graph_signature
        self.mutated = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}

    def program(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Program:
        self._read_inputs(args, kwargs)
        origins, origin_of = read_origins(self.before, self.after, self._exported_names())
        nodes = self._read_nodes(origin_of)
        outputs, state = self._read_outputs()
        seen = self._observed(
            self.module, args, kwargs, self._eager_names(), [entry.name for entry in self.inputs],
            frozenset(entry.name for entry in state),
        )  # fmt: skip
        if len(seen.aliases) != len(outputs):
            raise CaptureError(f"the model returned {len(seen.aliases)} values when run, {len(outputs)} when exported")
        outputs = [
            ProgramOutput(output.value, output.spec, alias) if output.spec is not None else output
            for output, alias in zip(outputs, seen.aliases, strict=True)
        ]
        in_spec, out_spec = self.after.call_spec.in_spec, self.after.call_spec.out_spec
        if in_spec is None or out_spec is None:
            raise CaptureError("the exported program does not say how its arguments and results are structured")
        self._check_names(origins)
        program = Program(
            self.name, tuple(self.inputs), self.tensors, tuple(nodes), tuple(outputs), tuple(state), origins,
            in_spec, out_spec, _same(self.inputs, pytree.tree_leaves((args, kwargs))),
        )  # fmt: skip
        check_against_eager(program, args, kwargs, seen)
        return program

    def _observed(self, *given: Any) -> Observed:
        try:
            return observe(*given)
        except TapestryError:
            raise
        except Exception as error:
            raise CaptureError(explained(error, "the model itself raises on these inputs")) from error

    # -- inputs

    def _read_inputs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        signature = self.after.graph_signature
        placeholders = {node.name: node for node in self.after.graph.nodes if node.op == "placeholder"}
        leaves = pytree.tree_flatten_with_path((args, kwargs))[0]
        user = iter(leaves)
        for spec in signature.input_specs:
            arg_name = cast("Any", spec.arg).name
            node = placeholders.get(arg_name)
            if spec.kind == InputKind.USER_INPUT:
                path, leaf = next(user)
                self._read_user_input(arg_name, node, pytree.keystr(path), leaf)
                continue
            if spec.kind in {InputKind.TOKEN, InputKind.CUSTOM_OBJ} or spec.target is None or node is None:
                raise CaptureError(f"inputs of kind {spec.kind.name} are not supported: {arg_name}")
            value_name = f"{_prefix(spec.kind)}:{spec.target}"
            self.tensors[value_name] = self._tensor(spec.kind, spec.target)
            self.values[node] = Ref(value_name)

    def _read_user_input(self, arg_name: str, node: torch.fx.Node | None, path: str, leaf: object) -> None:
        name = f"input:{arg_name}"
        if isinstance(leaf, torch.Tensor):
            self.inputs.append(ProgramInput(name, path, TensorSpec.of(leaf)))
            if node is not None:
                self.values[node] = Ref(name)
            return
        self.inputs.append(ProgramInput(name, path, None, leaf))
        if node is not None:
            self.values[node] = cast("Argument", leaf)

    def _tensor(self, kind: InputKind, target: str) -> torch.Tensor:
        if kind == InputKind.CONSTANT_TENSOR or target not in self.after.state_dict:
            tensor = cast("torch.Tensor", self.after.constants[target])
        else:
            tensor = self.after.state_dict[target]
        tensor = tensor.detach()
        return tensor.clone() if target in self.mutated else tensor

    # -- nodes

    def _read_nodes(self, origin_of: Mapping[str, str]) -> list[Node]:
        nodes: list[Node] = []
        for fx_node in self.after.graph.nodes:
            if fx_node.op == "get_attr":
                self._read_attribute(fx_node)
            elif fx_node.op == "call_function":
                node = self._read_call(fx_node, origin_of)
                if node is not None:
                    nodes.append(node)
        return nodes

    def _read_attribute(self, fx_node: torch.fx.Node) -> None:
        value: object = self.after.graph_module
        for part in str(fx_node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"control flow (a nested graph, {fx_node.target}) is not supported"
                f"{_at(next(iter(fx_node.users), fx_node))}; make the choice before capture"
            )
        name = f"const:{fx_node.target}"
        self.tensors[name] = value.detach()
        self.values[fx_node] = Ref(name)

    def _read_call(self, fx_node: torch.fx.Node, origin_of: Mapping[str, str]) -> Node | None:
        target = fx_node.target
        if getattr(target, "__name__", "") == "getitem" and isinstance(fx_node.args[0], torch.fx.Node):
            base = self.values[fx_node.args[0]]
            if not isinstance(base, Ref):
                raise CaptureError(f"expected an item of a result, got an item of {base!r}{_at(fx_node)}")
            self.values[fx_node] = Ref(base.name, cast("int", fx_node.args[1]))
            return None
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"expected calls of operators only, got {target}{_at(fx_node)}")
        if self._is_no_op(fx_node, target):
            if fx_node.args and isinstance(fx_node.args[0], torch.fx.Node):
                self.values[fx_node] = self.values[fx_node.args[0]]
            return None
        source = read_source(fx_node)
        node_id = self._name(source.module, traits.base_name(target))
        outputs, is_tuple = _specs(fx_node)
        call = Call(
            node_id,
            target,
            tuple(self._argument(value) for value in fx_node.args),
            tuple((key, self._argument(value)) for key, value in fx_node.kwargs.items()),
            outputs,
            is_tuple,
        )
        self.values[fx_node] = Ref(node_id)
        return Node(call, origin_of.get(fx_node.name, fx_node.name), source)

    def _is_no_op(self, fx_node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
        if target._schema.name in _DROPPED:
            return True
        if target._schema.name != "aten::clone":
            return False
        history = fx_node.meta.get("from_node") or []
        return bool(history) and str(history[-1].target).startswith(("aten.dropout", "aten.feature_dropout"))

    def _name(self, module: str, base: str) -> str:
        stem = f"{module}.{base}" if module else base
        count = self.names_taken.get(stem, 0)
        self.names_taken[stem] = count + 1
        return stem if count == 0 else f"{stem}#{count}"

    def _argument(self, value: object) -> Argument:
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, tuple | list):
            return tuple(self._argument(entry) for entry in cast("list[object]", value))
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise CaptureError(f"a size depends on data ({value}): programs have fixed shapes")
        return cast("Argument", value)

    # -- outputs

    def _read_outputs(self) -> tuple[list[ProgramOutput], list[State]]:
        signature = self.after.graph_signature
        (output_node,) = [node for node in self.after.graph.nodes if node.op == "output"]
        outputs: list[ProgramOutput] = []
        state: list[State] = []
        for spec, value in zip(signature.output_specs, cast("tuple[object, ...]", output_node.args[0]), strict=True):
            result = self._argument(value)
            if spec.kind == OutputKind.USER_OUTPUT:
                outputs.append(ProgramOutput(result, _spec_of(value)))
                continue
            if spec.target is None or not isinstance(result, Ref):
                raise CaptureError(f"outputs of kind {spec.kind.name} are not supported")
            if spec.kind not in _WRITTEN:
                raise CaptureError(f"outputs of kind {spec.kind.name} are not supported: {spec.target}")
            name = f"{_WRITTEN[spec.kind]}:{spec.target}"
            tensor_spec = _spec_of(value)
            if tensor_spec is None:
                raise CaptureError(f"expected a tensor written to {name}, got {value!r}")
            state.append(State(name, result, tensor_spec))
        return outputs, state

    # -- names

    def _exported_names(self) -> dict[str, str]:
        """Names in the graph before decomposition → value names."""
        names = {entry.name.removeprefix("input:"): entry.name for entry in self.inputs}
        for spec in self.before.graph_signature.input_specs:
            if spec.target is not None:
                names[cast("Any", spec.arg).name] = f"{_prefix(spec.kind)}:{spec.target}"
        return names

    def _eager_names(self) -> dict[str, torch.Tensor]:
        """Value name → the tensor of the original module that it is."""
        return {
            **{f"param:{name}": tensor for name, tensor in self.module.named_parameters(remove_duplicate=False)},
            **{f"buffer:{name}": tensor for name, tensor in self.module.named_buffers(remove_duplicate=False)},
            **{name: tensor for name, tensor in self.tensors.items() if name.startswith("const:")},
        }

    def _check_names(self, origins: Mapping[str, Origin]) -> None:
        if not all(origins):
            raise CaptureError("an exported call has no name")


def _prefix(kind: InputKind) -> str:
    return {InputKind.PARAMETER: "param", InputKind.BUFFER: "buffer"}.get(kind, "const")


def _spec_of(value: object) -> TensorSpec | None:
    found = value.meta.get("val") if isinstance(value, torch.fx.Node) else None
    if not isinstance(found, torch.Tensor):
        return None
    return _tensor_spec(found, cast("torch.fx.Node", value))


def _tensor_spec(fake: torch.Tensor, fx_node: torch.fx.Node) -> TensorSpec:
    if fake.layout != torch.strided:
        raise CaptureError(f"expected dense tensors, got layout {fake.layout}{_at(fx_node)}")
    if any(isinstance(size, torch.SymInt) for size in (*fake.shape, *fake.stride())):
        raise CaptureError(f"a shape depends on data: {tuple(fake.shape)}{_at(fx_node)}; programs have fixed shapes")
    return TensorSpec.of(fake)


def _specs(fx_node: torch.fx.Node) -> tuple[tuple[TensorSpec | None, ...], bool]:
    value = fx_node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (_tensor_spec(value, fx_node),), False
    if isinstance(value, tuple | list):
        entries = cast("list[object]", value)
        specs = [_tensor_spec(entry, fx_node) if isinstance(entry, torch.Tensor) else None for entry in entries]
        return tuple(specs), True
    if value is None:
        return (), False
    raise CaptureError(
        f"{fx_node.target} returns {type(value).__name__}, a number that depends on data{_at(fx_node)}; "
        "programs compute tensors only"
    )


def _at(fx_node: torch.fx.Node) -> str:
    source = read_source(fx_node)
    return f" at {source.file}:{source.line}: {source.code}" if source.line else ""
