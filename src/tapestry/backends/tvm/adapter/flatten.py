"""The Relax ``main`` and the split host functions, flattened: tensors, aliases and launches as plain data."""

from __future__ import annotations

from typing import Any

from tapestry.backends.tvm.plan import Kernel, Literal, Plan, Slot, Step
from tapestry.errors import CompileError

Triple = tuple[int, int, int]


def flatten(main: Any, hosts: dict[str, Any], kernels: tuple[Kernel, ...], source: str) -> Plan:
    """The plan of ``main``: call_tir becomes launches, reshape an alias. CompileError for anything else."""
    walker = _Main(hosts)
    inputs = tuple(walker.parameter(parameter) for parameter in main.params)
    for block in main.body.blocks:
        for binding in block.bindings:
            walker.env[binding.var] = walker.evaluate(binding.value)
    results = walker.evaluate(main.body.body)
    outputs = tuple(results if isinstance(results, list) else [results])
    return Plan(tuple(walker.slots), inputs, outputs, tuple(walker.literals), kernels, tuple(walker.steps), source)


class _Main:
    def __init__(self, hosts: dict[str, Any]) -> None:
        self.env: dict[Any, Any] = {}
        self.slots: list[Slot] = []
        self.literals: list[Literal] = []
        self.steps: list[Step] = []
        self._functions = {name: _Host(function) for name, function in hosts.items()}

    def slot(self, ty: Any, alias: int = -1) -> int:
        self.slots.append(Slot(tuple(int(size) for size in ty.shape), str(ty.dtype), alias))
        return len(self.slots) - 1

    def parameter(self, parameter: Any) -> int:
        place = self.slot(parameter.ty)
        self.env[parameter] = place
        return place

    def evaluate(self, value: Any) -> Any:
        """The slot of a value, or a list of slots for a tuple."""
        match type(value).__name__:
            case "Var" | "DataflowVar":
                return self.env[value]
            case "Tuple":
                return [self.evaluate(field) for field in value.fields]
            case "TupleGetItem":
                return self.evaluate(value.tuple_value)[value.index]
            case "GenericConst":
                return self._literal(value)
            case "Call":
                return self._call(value)
            case kind:
                raise CompileError(f"TVM leaves a {kind} in the graph after lowering")

    def _literal(self, value: Any) -> int:
        data = value.data.numpy() if hasattr(value, "data") else value.value.numpy()
        flat = data.reshape(-1)
        if flat.size == 0 or flat.tobytes() != flat[:1].tobytes() * flat.size:
            raise CompileError(f"TVM leaves a constant tensor of shape {data.shape} in the graph after lowering")
        place = self.slot(value.ty)
        self.literals.append(Literal(place, flat[0].item()))
        return place

    def _call(self, call: Any) -> Any:
        name = getattr(call.op, "name", "")
        if name == "relax.call_tir":
            return self._call_tir(call)
        if name in {"relax.reshape", "relax.memory.view"}:
            return self.slot(call.ty, self.evaluate(call.args[0]))
        raise CompileError(f"TVM leaves the operator {name or call.op} in the graph after lowering")

    def _call_tir(self, call: Any) -> Any:
        if len(call.args) > 2 and call.args[2] is not None and len(call.args[2].values):
            raise CompileError("TVM leaves symbolic sizes after lowering")
        inputs = self.evaluate(call.args[1])
        result = (call.ty_args if hasattr(call, "ty_args") else call.sinfo_args)[0]
        single = not hasattr(result, "fields")
        outputs = [self.slot(ty) for ty in ([result] if single else result.fields)]
        host = self._functions.get(call.args[0].name_hint)
        if host is None:
            raise CompileError(f"TVM made no host function for {call.args[0].name_hint}")
        workspaces = {name: self.slot(buffer) for name, buffer in host.workspaces.items()}
        arguments = [*(inputs if isinstance(inputs, list) else [inputs]), *outputs]
        for kernel, args, grid, block in host.launches:
            slots = tuple(workspaces[arg] if isinstance(arg, str) else arguments[arg] for arg in args)
            self.steps.append(Step(kernel, slots, grid, block))
        return outputs[0] if single else outputs


class _Host:
    """One host function: its launches, whose arguments are parameter numbers (int) or workspace names (str)."""

    def __init__(self, function: Any) -> None:
        self.workspaces: dict[str, Any] = {}
        self.launches: list[tuple[str, list[int | str], Triple, Triple]] = []
        self._names: dict[str, int | str] = {parameter.name: at for at, parameter in enumerate(function.params)}
        self._walk(function.body)

    def _walk(self, statement: Any) -> None:
        kind = type(statement).__name__
        if kind == "SeqStmt":
            for entry in statement.seq:
                self._walk(entry)
        elif kind == "DeclBuffer":
            self._names[statement.buffer.name] = self._base(statement.data)
        elif kind == "AllocBuffer":
            name = statement.buffer.name
            self.workspaces[name] = statement.buffer
            self._names[name] = name
        elif kind == "AttrStmt":
            self._walk(statement.body)
        elif kind == "Evaluate" and getattr(statement.value.op, "name", "") == "tirx.call_ffi_kernel":
            self._launch(statement.value)
        else:
            raise CompileError(f"TVM leaves a {kind} on the host: {str(statement)[:200]}")

    def _base(self, value: Any) -> int | str:
        if type(value).__name__ == "Call" and value.op.name == "tirx.buffer_data":
            return self._names[value.args[0].name]
        if hasattr(value, "name"):
            return self._names[value.name]
        raise CompileError(f"TVM passes a value to a kernel that is not a buffer: {value}")

    def _launch(self, call: Any) -> None:
        tags = [str(tag) for tag in (call.attrs["launch_params"] if call.attrs is not None else [])]
        if any(tag not in _TAGS for tag in tags):
            raise CompileError(f"TVM launches with {tags}, expected only {sorted(_TAGS)}")
        count = len(call.args) - 1 - len(tags)
        args = [self._base(value) for value in call.args[1 : 1 + count]]
        extents = {tag: int(value) for tag, value in zip(tags, call.args[1 + count :], strict=True)}
        self.launches.append(
            (str(call.args[0].value), args, _triple(extents, "blockIdx"), _triple(extents, "threadIdx"))
        )


_TAGS = {f"{group}.{axis}" for group in ("blockIdx", "threadIdx") for axis in "xyz"}


def _triple(extents: dict[str, int], group: str) -> Triple:
    x, y, z = (extents.get(f"{group}.{axis}", 1) for axis in "xyz")
    return x, y, z
