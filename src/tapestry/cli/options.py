"""The options that several commands share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODELS = "demo:minilm, demo:smollm2, zoo:NAME, hf:DIR, FILE.pt2 or FILE.py:FACTORY."
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODELS, show_default=False)]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Unpickle a .pt2 file that needs it: runs whatever code it holds.")
]
To = Annotated[
    str,
    typer.Option("--to", metavar="DEVICE", help="The target: opencl, opencl:1, cpu, ws://HOST:PORT/opencl:0?token=T."),
]
Backend = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="One, or several in order of preference: kernels,tvm.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="An option of the backend: precision=int8, calibration=SUITE; repeatable."
    ),
]
Kernels = Annotated[
    list[Path] | None,
    typer.Option("--kernels", metavar="FILE.py", help="Hand-written kernels, preferred to the compiler; repeatable."),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON.")]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report.")]
JournalDir = Annotated[
    Path | None,
    typer.Option("--journal", metavar="DIR", help="Where the journal is kept; default: the user's state directory."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget the journal and start over.")]
Variants = Annotated[
    int,
    typer.Option("--variants", metavar="N", help="Variants to derive for every operator and shape; 0: none.", min=0),
]
