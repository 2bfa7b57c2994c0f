"""The ``tapestry`` command. Not here: the work; commands call the library and show what it returns."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from tapestry.cli.app import run
    from tapestry.runtime.openmp import let_threads_sleep

    let_threads_sleep()  # before a command imports torch
    run()
