"""The file that a kernel begins as: its pattern, its launch, its cases, and a body that refuses until it is written.

Not here: which cases (form), and the kernel languages (languages).
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tapestry.errors import UsageError
from tapestry.program import traits
from tapestry.program.graph import Argument, Call, Graph, Ref, refs_in
from tapestry.program.serial import dtype_name
from tapestry.suite.case import Case
from tapestry.suite.skeleton.form import Form, Slot, attributes, by_form, varying
from tapestry.suite.skeleton.languages import GROUP, LANGUAGES, counts

#: Cases that are written out; of the others there is a count.
_LISTED = 24
#: Names that the file imports or defines.
_IMPORTED = frozenset(
    {
        "MatchView", "op", "any_", "attr", "dtypes", "all_of", "ceil", "Dispatch", "kernel", "groups_for", "m",
    }
)  # fmt: skip
#: Characters of a line.
_WIDTH = 120


@dataclass(frozen=True)
class Skeleton:
    """``text`` is the file. ``cases`` are those that the kernel takes, ``others`` the rest by their form."""

    name: str
    op: str
    text: str
    cases: tuple[Case, ...]
    others: tuple[tuple[Form, tuple[Case, ...]], ...]


def language_of(device: str) -> str:
    """The name of a device kind's kernel language. UsageError for a kind without kernels."""
    if device not in LANGUAGES:
        raise UsageError(f"expected a device with hand-written kernels ({', '.join(LANGUAGES)}), got {device!r}")
    return LANGUAGES[device].name


def skeleton(op: str, cases: Sequence[Case], device: str, commands: Sequence[str]) -> Skeleton:
    """A kernel to be written for the commonest form of an operator's cases. ``commands`` say how they are replayed.

    UsageError for a device kind without kernels, and where its language has no type for any of the cases.
    """
    language = language_of(device)
    types = LANGUAGES[device].types
    forms = by_form(cases)
    fit = [form for form in forms if form.dtypes <= set(types)]
    if not fit:
        lacking = sorted({dtype for form in forms for dtype in form.dtypes} - set(types))
        raise UsageError(f"{language} has no type for {', '.join(lacking)}, which every case of {op} holds")
    form = fit[0]
    others = tuple((other, tuple(found)) for other, found in forms.items() if other != form)
    chosen = tuple(forms[form])
    name = _function_name(chosen[0])
    text = "\n".join([*_docstring(op, device, chosen, others, commands), *_code(op, device, form, chosen, name), ""])
    return Skeleton(name, op, text, chosen, others)


def described(graph: Graph) -> str:
    """A call for people: its tensors with dtypes and shapes, the attributes that are not defaults, its results."""
    (call,) = graph.calls
    shapes = {entry.name: f"{dtype_name(entry.spec.dtype)} {list(entry.spec.shape)}" for entry in graph.inputs}
    given = [_shown(name, value, shapes) for name, value in _given(call)]
    results = [f"{dtype_name(graph.spec(ref).dtype)} {list(graph.spec(ref).shape)}" for ref in graph.outputs]
    return f"{', '.join(given)} -> {', '.join(results)}"


def _given(call: Call) -> Iterator[tuple[str, Argument]]:
    names = [entry.name for entry in call.target._schema.arguments]
    yield from zip(names, call.args, strict=False)
    yield from call.kwargs


def _shown(name: str, value: Argument, shapes: dict[str, str]) -> str:
    def text(part: Argument) -> str:
        if isinstance(part, tuple):
            return f"[{', '.join(text(entry) for entry in part)}]"
        return shapes[part.name] if isinstance(part, Ref) else repr(part)

    return f"{name}{' ' if any(True for _ in refs_in(value)) else '='}{text(value)}"


def _function_name(case: Case) -> str:
    (call,) = case.load_graph().calls
    return _unused(traits.base_name(call.target).strip("_") or "kernel")


def _docstring(
    op: str, device: str, cases: Sequence[Case], others: Sequence[tuple[Form, Sequence[Case]]], commands: Sequence[str]
) -> Iterator[str]:
    carved = [case for case in cases if not case.base]
    derived = len(cases) - len(carved)
    counted = _counted(len(carved), "case") + (f" and {_counted(derived, 'variant')}" if derived else "")
    yield f'"""A kernel for {op} on {device}, still to be written: see "to do".'
    yield ""
    yield f"It must pass {counted}:"
    yield ""
    shown = (carved or list(cases))[:_LISTED]
    for case in shown:
        yield from _wrapped(f"    {case.id}: {_escaped(described(case.load_graph()))}")
    if len(cases) > len(shown):
        yield f"    and {_counted(len(cases) - len(shown), 'other')}, named by the replay."
    yield ""
    if others:
        count = sum(len(found) for _, found in others)
        yield f"It does not take {_counted(count, 'case')} of other types or arguments; kernels of their own may:"
        yield ""
        for form, found in others[:_LISTED]:
            yield from _wrapped(f"    {len(found)} of {_form_words(form)}")
        yield ""
    yield "To see what becomes of them:"
    yield ""
    yield from (f"    {command}" for command in commands)
    yield '"""'
    yield ""


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _form_words(form: Form) -> str:
    read = ", ".join(f"{name} {dtype}" for name, dtype in form.captures)
    return f"{read or 'no tensor'} -> {', '.join(dtype for _, dtype in form.results)}"


def _wrapped(line: str) -> Iterator[str]:
    while len(line) > _WIDTH:
        cut = line.rfind(" ", 8, _WIDTH)
        if cut < 0:
            break
        yield line[:cut]
        line = f"        {line[cut + 1 :]}"
    yield line


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _code(op: str, device: str, form: Form, cases: Sequence[Case], name: str) -> Iterator[str]:
    language = LANGUAGES[device]
    calls = [case.load_graph().calls[0] for case in cases]
    free = varying(calls)
    condition = _condition(form)
    rules = ["MatchView", "op"]
    rules += ["any_"] if form.captures else []
    rules += ["attr"] if free else []
    rules += ["dtypes"] if condition else []
    rules += ["all_of"] if "all_of" in condition else []
    yield "from math import ceil"
    yield ""
    yield "from tapestry.backends.kernels.declare import Dispatch, kernel"
    if language.needs:
        yield language.needs
    yield f"from tapestry.backends.rules import {', '.join(sorted(rules, key=lambda entry: (entry.islower(), entry)))}"
    yield ""
    yield ""
    yield "@kernel("
    yield f'    device="{device}",'
    yield from _pattern(op, form, free)
    if condition:
        yield f"    when={condition},"
    yield ")"
    yield f"def {name}(m: MatchView) -> Dispatch:"
    yield '    # m.spec(NAME) has the shape of a captured tensor, m.spec("call") that of the result.'
    for attribute in free:
        yield f'    {_unused(attribute)} = m.value("{attribute}")  # {_values(attribute, calls)}'
    results = [_result(form, place) for place in range(len(form.results))]
    constants = counts(len(results))
    for variable, (_, expression) in zip(_numbers(len(results)), results, strict=True):
        yield f"    {variable} = {expression}"
    if len(results) > 1:
        yield f"    count = max({', '.join(_numbers(len(results)))})"
    yield '    raise NotImplementedError("to do: write the body of the kernel below, then delete this line")'
    yield "    return Dispatch("
    yield '        source="""'
    inputs = [(capture, language.types[dtype]) for capture, dtype in form.captures]
    outputs = [(binding, language.types[dtype]) for (binding, _), (_, dtype) in zip(results, form.results, strict=True)]
    entry = f"{name.rstrip('_')}_kernel"
    for line in language.source(entry, inputs, outputs):
        yield f"        {line}" if line else ""
    yield '        """,'
    yield f'        entry="{entry}",'
    bindings = [capture for capture, _ in form.captures] + [binding for binding, _ in results]
    yield f"        bindings={_quoted(bindings)},"
    yield f"        groups={language.groups},"
    yield f"        workgroup=({GROUP},),"
    pairs = ", ".join(
        f'"{constant}": {number}' for constant, number in zip(constants, _numbers(len(results)), strict=True)
    )
    yield f"        constants={{{pairs}}},"
    yield "    )"


def _numbers(results: int) -> tuple[str, ...]:
    return ("count",) if results == 1 else tuple(f"count{place}" for place in range(results))


def _result(form: Form, place: int) -> tuple[str, str]:
    """The binding of a result, and the expression for its number of elements."""
    item, _ = form.results[place]
    binding = "out" if len(form.results) == 1 else f"out{place}"
    return binding, 'm.spec("call").numel' if item == 0 else f'm.call("call").outputs[{item}].numel'


def _pattern(op: str, form: Form, free: Sequence[str]) -> Iterator[str]:
    parts = [f'"{op}"', *_arguments(op, form, free)]
    line = f'    pattern=op({", ".join(parts)}).named("call"),'
    if len(line) <= _WIDTH:
        yield line
        return
    yield "    pattern=op("
    yield from (f"        {part}," for part in parts)
    yield '    ).named("call"),'


def _arguments(op: str, form: Form, free: Sequence[str]) -> Iterator[str]:
    """The arguments by name, in the order of the schema: names alone say what is what."""
    slots = {slot.name: slot for slot in form.slots}
    positional = True
    for entry in _schema(op).arguments:
        if entry.name in slots:
            written = _expression(slots[entry.name])
        elif entry.name in free:
            written = f'attr("{entry.name}")'
        else:
            positional = False  # what follows a default is named
            continue
        by_place = positional and not entry.kwarg_only and entry.name in slots
        positional = by_place
        yield written if by_place else f"{entry.name}={written}"


def _schema(op: str) -> torch.FunctionSchema:
    from tapestry.suite.schema.overloads import find

    target = find(op)
    assert target is not None, op
    return target._schema


def _expression(slot: Slot) -> str:
    if not slot.listed:
        return f'any_("{slot.name}")'
    entries = ["None" if dtype is None else f'any_("{slot.name}{place}")' for place, dtype in enumerate(slot.dtypes)]
    return f"[{', '.join(entries)}]"


def _condition(form: Form) -> str:
    if len(form.dtypes) == 1:
        return f'dtypes("{next(iter(form.dtypes))}")'
    by_dtype: dict[str, list[str]] = {}
    for name, dtype in form.captures:
        by_dtype.setdefault(dtype, []).append(name)
    if form.results and form.results[0][0] == 0:
        by_dtype.setdefault(form.results[0][1], []).append("call")
    parts = [f'dtypes("{dtype}", of={_quoted(names)})' for dtype, names in by_dtype.items()]
    return parts[0] if len(parts) == 1 else f"all_of({', '.join(parts)})" if parts else ""


def _quoted(names: Sequence[str]) -> str:
    """A tuple of strings as ruff formats it."""
    inside = ", ".join(f'"{name}"' for name in names)
    return f"({inside},)" if len(names) == 1 else f"({inside})"


def _unused(name: str) -> str:
    """The name, with a mark behind it where the file uses it for something else (aten has a max, a ceil, an input)."""
    taken = keyword.iskeyword(name) or hasattr(builtins, name) or name in _IMPORTED or name.startswith("count")
    return f"{name}_" if taken else name


def _values(attribute: str, calls: Sequence[Call]) -> str:
    """The values that an attribute has in the cases, the first few."""
    values = list(dict.fromkeys(repr(attributes(call)[attribute]) for call in calls))
    return ", ".join(values[:4]) + (", …" if len(values) > 4 else "")
