"""The command tree, and how every command ends: messages for people, exit codes for machines.

Exit codes: 0 all good, 1 findings, 2 wrong usage, 3 environment, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import typer
from rich.text import Text

from tapestry.cli.console import err
from tapestry.errors import TapestryError
from tapestry.extras import missing

#: Command → the module of cli.commands that has a function of that name.
_COMMANDS = (
    "carve",
    "replay",
    "audit",
    "repro",
    "migrate",
    "profile",
    "place",
    "explain",
    "agent",
    "devices",
    "backends",
    "doctor",
)

#: Group of commands → the module of cli.commands that has them under that name.
_GROUPS = ("kernel",)

_INTERRUPTED = 130

app = typer.Typer(
    name="tapestry",
    help="Bring a PyTorch model up on a new platform, operator by operator, and see what is wrong there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        from tapestry import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


for _name in _COMMANDS:
    app.command(_name)(getattr(import_module(f"tapestry.cli.commands.{_name}"), _name))
for _name in _GROUPS:
    app.add_typer(getattr(import_module(f"tapestry.cli.commands.{_name}"), _name), name=_name)


def run() -> NoReturn:
    """Run the command line and leave with its exit code."""
    try:
        code = app(standalone_mode=False)
        if code == _INTERRUPTED:  # what typer makes of KeyboardInterrupt, without a word
            _say(_interrupted(sys.argv[1:2]))
    except TapestryError as error:
        _say(str(error))
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say(_interrupted(sys.argv[1:2]))
        code = _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except typer.Exit as error:
        code = error.exit_code
    except OSError as error:
        _say(f"cannot write to the terminal or a file: {error}")
        code = 2
    except ModuleNotFoundError as error:
        problem = missing(error, "this command")
        if problem is None:
            raise
        _say(str(problem))
        code = problem.exit_code
    except Exception as error:
        code = _usage(error)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted(command: Sequence[str]) -> str:
    if tuple(command) in {("migrate",), ("replay",), ("audit",)}:
        return "interrupted; what was finished is in the journal, run the same command to go on"
    return "interrupted"


def _usage(error: Exception) -> int:
    """Show click's own usage errors, which say what is wrong; anything else is a fault of ours and is raised."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if not (callable(show) and isinstance(code, int)):
        raise error
    show()
    return code


def _say(message: str) -> None:
    err.print(Text.assemble(("error: ", "red"), message), soft_wrap=True)
