"""``README.md`` of a bundle: what fails where, how to run it, and what of the model is in it. Not here: the files."""

from __future__ import annotations

from collections.abc import Sequence

from tapestry.suite.repro.record import ReproRecord, Size

_TEXT = """\
# {op} on {device} with {backend}: {verdict}

**{verdict}**: {reason}

| | |
|---|---|
| operator | `{op}` |
| called at | {source} |{variant}
| device | {device}: {description} |
| device fingerprint | {fingerprint} |
| backend | {backend} ({backend_versions}) |
{versions}

## Run it

`python repro.py` needs PyTorch and nothing else. It makes the inputs, calls the operator in eager PyTorch, and prints
what is expected (eager, and the same in float64) beside what the device gave when this was recorded.

To run it on a device again, with Tapestry (`pip install 'tapestry-ml[bringup]'`):

```console
$ tapestry replay . --to {replayed_device} --backend {backend}{kernels}
```

## What is in it

{contents}

Before the reduction: {before}. After it: {after}.
{how}

It holds no model: {constants} constants of the model (parameters, or computed from parameters alone).

* `repro.py`{files}: the script.
* `suite/`: the same as a Tapestry suite of one case.
* `repro.json`: all of the above for programs.
"""


def readme_text(record: ReproRecord, files: Sequence[str], calls: Sequence[str]) -> str:
    """The text. ``files`` are those that the script reads, ``calls`` the calls as Python text."""
    device = record.device
    return _TEXT.format(
        op=record.op,
        device=_cell(device.name),
        backend=record.backend,
        verdict=record.verdict,
        reason=_quote(record.reason or "no reason given"),
        variant=f"\n| values | made: {_cell(record.variant)} |" if record.variant else "",
        source=_cell(record.source or "unknown line"),
        description=_cell(device.description),
        fingerprint=_cell(device.fingerprint),
        backend_versions=_cell(record.fingerprint),
        versions="\n".join(f"| {name} | {_cell(value)} |" for name, value in record.versions.items()),
        replayed_device=device.name,
        kernels=" --kernels FILE.py" if record.backend == "kernels" else "",
        contents="```python\n" + "\n".join(calls) + "\n```",
        before=_size(record.before),
        after=_size(record.after),
        how=_how(record),
        constants=_constants(record.after.constants),
        files="".join(f", `{name}`" for name in files),
    )


def _how(record: ReproRecord) -> str:
    if not record.steady:
        return "It does not fail in the same way each time it is run, so it was not reduced."
    if not record.reductions:
        return f"Nothing smaller was found that fails in the same way ({record.runs} runs)."
    done = ", ".join(f"{what} ({count})" for what, count in record.reductions.items())
    return f"Reduced in {record.runs} runs on the device, each step failing in the same way: {done}."


def _size(size: Size) -> str:
    calls = "1 call" if size.calls == 1 else f"{size.calls} calls"
    return f"{size.elements:,} element{'' if size.elements == 1 else 's'} of input, {calls}"


def _constants(count: int) -> str:
    return {0: "none of its elements are", 1: "1 of its elements is from"}.get(count, f"{count:,} elements are from")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|") or "-"


def _quote(text: str) -> str:
    """Several lines (a device's last words) as a block."""
    lines = text.strip().splitlines()
    if len(lines) <= 1:
        return text.strip()
    return lines[0] + "\n\n```\n" + "\n".join(lines[1:]).replace("```", "'''") + "\n```"
