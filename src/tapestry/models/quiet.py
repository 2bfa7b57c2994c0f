"""Importing transformers and reading GGUF files with it, without its noise and its repetitions."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from unittest.mock import patch


@contextmanager
def quiet_imports() -> Generator[None]:
    """Hold back log records up to warnings; errors still come through, and exceptions are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def gguf_read_once() -> Generator[None]:
    """Parse the metadata of a GGUF file once: transformers asks for it for tokenizer, config and weights each.

    A vocabulary of 50,000 tokens takes seconds. The files must not change inside. Its progress bar, which no setting of
    transformers turns off, is left out. ModuleNotFoundError without gguf or transformers.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    def silent(entries: Iterable[object], **_: object) -> Iterable[object]:
        return entries

    with patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)), patch.object(reading, "tqdm", silent):
        yield
