"""``repro.py``: a script that imports PyTorch and the standard library only, makes the inputs, calls the operator and
prints what was expected beside what the device gave.

Not here: tensors as text (literals), and the other files of a bundle (bundle).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tapestry.program.graph import Call, Graph, Ref
from tapestry.program.serial import overload_name
from tapestry.suite.repro.attempt import Attempt, Expected
from tapestry.suite.repro.literals import Blob, argument_text, tensor_text
from tapestry.suite.repro.record import ReproRecord
from tapestry.suite.repro.subject import Subject

#: The files of tensors that are too large to be read in the script.
FILES = ("inputs.bin", "expected.bin", "got.bin")

_HEAD = '''\
"""{title}

{reason}

Run it with any PyTorch: python repro.py. It needs nothing else, and compares what eager PyTorch gives here with what
the device gave when this was recorded.
"""

import os
import sys
from math import inf, nan  # noqa: F401  (numbers below may need them)

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
#: Elements shown of each result: all of a small one, else the most wrong ones.
SHOWN = 16


def read(file, dtype, start, count):
    """Elements stored in a file beside this script, little-endian."""
    with open(os.path.join(HERE, file), "rb") as stored:
        data = bytearray(stored.read())
    if sys.byteorder != "little":
        raise SystemExit("the files hold little-endian numbers, which this machine does not read")
    return torch.frombuffer(data, dtype=dtype, count=count, offset=start).clone()


def wide(tensor):
    """The elements as float64 (complex128), in a row."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).reshape(-1)


def errors(right, got):
    """How far each element is off; inf where one of the two is NaN or infinite and the other is not the same."""
    same = (right == got) | ((right != right) & (got != got))
    off = (right - got).abs().double()
    off[off != off] = inf
    off[same] = 0.0
    return off


def compare(name, eager, exact, got):
    """Print one result: expected (eager here, and float64 as recorded) beside what the device gave."""
    print(f"{{name}}: {{eager.dtype}} of shape {{list(eager.shape)}}")
    if got is None:
        print("  the device gave nothing")
    elif got.shape != eager.shape or got.dtype != eager.dtype:
        print(f"  the device gave {{got.dtype}} of shape {{list(got.shape)}}")
        got = None
    here, right = wide(eager), None if exact is None else wide(exact)
    given = None if got is None else wide(got)
    off = torch.zeros(here.shape, dtype=torch.float64)
    if given is not None:
        off = errors(here if right is None else right, given)
    places = range(here.numel())
    if here.numel() > SHOWN:
        places = sorted(off.argsort(descending=True, stable=True)[:SHOWN].tolist())
    print(f"  {{'at':>14}} {{'eager':>24}} {{'float64':>24}} {{'got':>24}} {{'error':>10}}")
    for place in places:
        at = [int(i) for i in torch.unravel_index(torch.tensor(place), eager.shape)] if eager.dim() else []
        cells = [str(column[place].item()) if column is not None else "-" for column in (here, right, given)]
        error = f"{{off[place].item():.3g}}" if given is not None else "-"
        print(f"  {{str(at):>14}} {{cells[0]:>24}} {{cells[1]:>24}} {{cells[2]:>24}} {{error:>10}}")
    if here.numel() > SHOWN:
        print(f"  the {{SHOWN}} most wrong of {{here.numel()}} elements")
    if given is not None and here.numel():
        worst = int(off.argmax())
        at = [int(i) for i in torch.unravel_index(torch.tensor(worst), eager.shape)] if eager.dim() else []
        count = int((off > 0).sum())
        print(f"  largest error {{off[worst].item():.6g}} at {{at}}; {{count}} of {{off.numel()}} elements differ")

'''


def script_text(
    subject: Subject, want: Expected, attempt: Attempt, record: ReproRecord
) -> tuple[str, dict[str, bytes]]:
    """The script, and the files it reads. ``record`` gives the words; all of them are cleaned already."""
    blobs = {name: Blob(name) for name in FILES}
    graph = subject.graph
    lines = [_head(record), "\n# The inputs.\n"]
    for entry, tensor in zip(graph.inputs, subject.inputs, strict=True):
        note = "  # a constant of the model" if entry.constant else ""
        lines.append(f"{entry.name} = {tensor_text(tensor, blobs['inputs.bin'])}{note}\n")
    lines.append("\n# The call, in eager PyTorch.\n" if subject.single else "\n# The calls, in eager PyTorch.\n")
    lines.append("with torch.no_grad():\n")
    lines += [f"    {call.name} = {call_text(graph, call)}\n" for call in graph.calls]
    lines.append("\n# What float64 gives (None: no oracle), and what the device gave.\n")
    lines.append(f"exact = {_list(want.exact, len(graph.outputs), blobs['expected.bin'])}\n")
    lines.append(f"got = {_list(attempt.got, len(graph.outputs), blobs['got.bin'])}\n")
    lines.append("\n" + _prints(graph, record))
    return "".join(lines), {name: bytes(blob.data) for name, blob in blobs.items() if blob.data}


def variable(graph: Graph, ref: Ref) -> str:
    """The text of a value in the script: a call of several results is a tuple there."""
    several = {call.name for call in graph.calls if call.is_tuple}
    return f"{ref.name}[{ref.item}]" if ref.name in several else ref.name


def call_text(graph: Graph, call: Call) -> str:
    """A call of a graph as Python text."""

    def named(ref: Ref) -> str:
        return variable(graph, ref)

    given = [argument_text(value, named) for value in call.args]
    given += [f"{name}={argument_text(value, named)}" for name, value in call.kwargs]
    return f"torch.ops.{overload_name(call.target)}({', '.join(given)})"


def _head(record: ReproRecord) -> str:
    title = f"{record.op} on {record.device.name} with {record.backend}: {record.verdict}"
    return _HEAD.format(title=_quoted(title), reason=_quoted(record.reason or "no reason given"))


def _quoted(text: str) -> str:
    """Text for the docstring: nothing in it may end or escape."""
    printable = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    return printable.replace("\\", "/").replace('"""', "'''").rstrip('"')


def _list(tensors: Sequence[Tensor | None] | None, count: int, blob: Blob) -> str:
    if tensors is None:
        return f"[None] * {count}"
    entries = ["None" if tensor is None else tensor_text(tensor.contiguous(), blob) for tensor in tensors]
    return f"[\n{''.join(f'    {entry},{chr(10)}' for entry in entries)}]"


def _prints(graph: Graph, record: ReproRecord) -> str:
    lines = [f"print({f'{record.op} on {record.device.name} with {record.backend}: {record.verdict}'!r})\n"]
    lines.append(f"print({record.reason!r})\n")
    for place, ref in enumerate(graph.outputs):
        name = variable(graph, ref)
        lines.append(f"compare({name!r}, {name}, exact[{place}], got[{place}])\n")
    return "".join(lines)
