"""Graphs as text, for tests that are read: a small graph in, the matched regions out.

One statement a line, ``#`` starts a comment:

    x: f32[2,3]                       an input
    w: param f32[4,3]                 a constant (``param f32[] = 2.0`` fills it with a number)
    s: state f32[2,3]                 a buffer that the program writes
    y = aten.linear.default(x, w)     a call; its node is named y
    h, m = aten.max.dim(y, 1)         several results: h is the first, m the second; the node is named h
    z = aten.relu.default(h[0])       result 0 of the node h
    write s = z                       the new value of the buffer
    return z, m

Specs of results come from meta tensors. Not here: capture, and anything that runs the graph.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from tapestry.backends.rules import Match, Selection
from tapestry.program.graph import Argument, Call, Graph, GraphInput, Ref, TensorSpec
from tapestry.program.program import Node, Origin, Program, ProgramInput, ProgramOutput, Source, State
from tapestry.program.serial import overload_name, overload_named

DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "bool": torch.bool,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
}  # fmt: skip

_DECLARED = re.compile(r"(\w+): (?:(param|state) )?(\w+)\[([\d, ]*)\](?: = (.+))?")
_CALL = re.compile(r"(\w+(?:, ?\w+)*) = (.+)")


@dataclass
class _Parsed:
    """What has been read so far."""

    declared: dict[str, tuple[str, TensorSpec, float]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    values: dict[str, Ref] = field(default_factory=dict)
    fakes: dict[Ref, torch.Tensor] = field(default_factory=dict)
    written: dict[str, Ref] = field(default_factory=dict)
    results: tuple[Ref, ...] = ()


def parse_graph(text: str) -> Graph:
    """The text as a Graph. Written buffers become inputs that are not constant, and outputs."""
    parsed = _parse(text)
    inputs = tuple(GraphInput(name, spec, kind == "param") for name, (kind, spec, _) in parsed.declared.items())
    return Graph(inputs, tuple(parsed.calls), (*parsed.results, *parsed.written.values()))


def parse_program(text: str) -> Program:
    """The text as a Program whose inputs are the positional arguments, in order."""
    parsed = _parse(text)
    inputs = {name: spec for name, (kind, spec, _) in parsed.declared.items() if not kind}
    tensors = {
        name: torch.full(spec.shape, value, dtype=spec.dtype)
        for name, (kind, spec, value) in parsed.declared.items()
        if kind
    }
    return Program(
        name="text",
        inputs=tuple(ProgramInput(name, f"args[{place}]", spec) for place, (name, spec) in enumerate(inputs.items())),
        tensors=tensors,
        nodes=tuple(Node(call, call.name, Source("", 0, "", "", "")) for call in parsed.calls),
        outputs=tuple(ProgramOutput(ref, TensorSpec.of(parsed.fakes[ref])) for ref in parsed.results),
        state=tuple(State(name, ref, parsed.declared[name][1]) for name, ref in parsed.written.items()),
        origins={call.name: Origin(call.name, overload_name(call.target), (), ()) for call in parsed.calls},
        in_spec=pytree.tree_structure((tuple(inputs), {})),
        out_spec=pytree.tree_structure(parsed.results),
    )


def regions(matches: Iterable[Match]) -> str:
    """One line a match: its nodes, and after a bar what its captures are bound to."""
    return "\n".join(_line(match) for match in matches)


def chosen(selection: Selection) -> str:
    """The chosen matches as ``regions`` writes them, then each left out with its reason."""
    left_out = [f"not {' '.join(entry.match.nodes)}: {entry.reason}" for entry in selection.left_out]
    return "\n".join([regions(selection.chosen), *left_out])


def block(text: str) -> str:
    """A triple-quoted text without its indentation and outer line breaks: what ``regions`` is compared to."""
    return textwrap.dedent(text).strip()


def _line(match: Match) -> str:
    bound = [f"{name}={_written(value)}" for name, value in match.bindings.items()]
    return " ".join([*match.nodes, *(["|", *bound] if bound else [])])


def _written(value: Argument) -> str:
    if isinstance(value, Ref):
        return f"{value.name}[{value.item}]" if value.item else value.name
    if isinstance(value, tuple):
        return f"[{','.join(map(_written, value))}]"
    return repr(value)


# -------------------------------------------------------------------------------------------------------------- parsing


def _parse(text: str) -> _Parsed:
    parsed = _Parsed()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        try:
            _read(parsed, line)
        except Exception as error:
            raise ValueError(f"line {number}: {line!r}: {error}") from error
    return parsed


def _read(parsed: _Parsed, line: str) -> None:
    if line.startswith("return"):
        parsed.results = tuple(_refs(parsed, line.removeprefix("return")))
    elif line.startswith("write "):
        name, _, value = line.removeprefix("write ").partition(" = ")
        (parsed.written[name],) = _refs(parsed, value)
    elif found := _DECLARED.fullmatch(line):
        _declare(parsed, *found.groups())
    elif found := _CALL.fullmatch(line):
        _call(parsed, [name.strip() for name in found[1].split(",")], found[2])
    else:
        raise ValueError("expected a declaration, a call, write or return")


def _refs(parsed: _Parsed, text: str) -> list[Ref]:
    tree = ast.parse(f"({text.strip()},)", mode="eval").body
    assert isinstance(tree, ast.Tuple)
    found = [_value(parsed, entry) for entry in tree.elts]
    return [ref for ref in found if isinstance(ref, Ref)]


def _declare(parsed: _Parsed, name: str, kind: str | None, dtype: str, shape: str, value: str | None) -> None:
    sizes = [int(size) for size in shape.split(",") if size.strip()]
    fake = torch.empty(sizes, dtype=DTYPES[dtype], device="meta")
    _name(parsed, name, Ref(name), fake)
    parsed.declared[name] = (kind or "", TensorSpec.of(fake), float(value or 0))


def _name(parsed: _Parsed, name: str, ref: Ref, fake: object) -> None:
    if name in parsed.values:
        raise ValueError(f"{name} is given twice")
    parsed.values[name] = ref
    if isinstance(fake, torch.Tensor):
        parsed.fakes[ref] = fake


def _call(parsed: _Parsed, names: list[str], text: str) -> None:
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call):
        raise ValueError("expected a call")
    target = overload_named(ast.unparse(tree.func))
    args = tuple(_value(parsed, entry) for entry in tree.args)
    kwargs = tuple((str(entry.arg), _value(parsed, entry.value)) for entry in tree.keywords)
    meta = {"device": "meta"} if any(entry.name == "device" for entry in target._schema.arguments) else {}
    made = target(
        *[_fake(parsed, value) for value in args], **{key: _fake(parsed, value) for key, value in kwargs} | meta
    )
    is_tuple = isinstance(made, tuple | list)
    results = list(made) if is_tuple else [made]
    specs = tuple(TensorSpec.of(entry) if isinstance(entry, torch.Tensor) else None for entry in results)
    for item, fake in enumerate(results):
        ref = Ref(names[0], item)
        if item < len(names):
            _name(parsed, names[item], ref, fake)
        elif isinstance(fake, torch.Tensor):
            parsed.fakes[ref] = fake
    parsed.calls.append(Call(names[0], target, args, kwargs, specs if target._schema.returns else (), is_tuple))


def _fake(parsed: _Parsed, value: Argument) -> object:
    if isinstance(value, Ref):
        return parsed.fakes[value]
    return [_fake(parsed, entry) for entry in value] if isinstance(value, tuple) else value


def _value(parsed: _Parsed, tree: ast.expr) -> Argument:
    match tree:
        case ast.Name(id="inf"):
            return float("inf")
        case ast.Name(id=name):
            return parsed.values[name]
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(item))):
            return Ref(parsed.values[name].name, item)
        case ast.List(elts=entries) | ast.Tuple(elts=entries):
            return tuple(_value(parsed, entry) for entry in entries)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return getattr(torch, name)
        case _:
            return ast.literal_eval(tree)
