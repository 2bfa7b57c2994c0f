"""Importing transformers without the log lines of packages that it looks for and we do not use."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet_imports() -> Generator[None]:
    """Hold back log records up to warnings; errors still come through, and exceptions are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
