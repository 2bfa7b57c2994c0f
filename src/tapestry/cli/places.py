"""Where commands keep things of their own, unless told otherwise."""

from __future__ import annotations

import hashlib
from pathlib import Path

import platformdirs


def journal_folder(subject: str) -> Path:
    """The folder of a job's journal, in the user's state directory, one per subject."""
    name = hashlib.sha256(subject.encode()).hexdigest()[:24]
    return Path(platformdirs.user_state_dir("tapestry")) / "journals" / name
