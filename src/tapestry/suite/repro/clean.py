"""What a bundle may say: no absolute paths of the machine it was made on, no tokens of devices, no endless texts.

Not here: which texts there are.
"""

from __future__ import annotations

import re

#: Characters of a reason that are kept.
LONGEST = 2_000

_TOKEN = re.compile(r"\btoken=[^\s&\"')]*", re.IGNORECASE)
_POSIX = re.compile(r"(?<![\w./:~-])(?:~|\.{1,2})?/(?:[^\s/:'\"()<>|,;]+/)*([^\s/:'\"()<>|,;]*)")
_FILE_URL = re.compile(r"file://[^\s'\"]*/")
_WINDOWS = re.compile(r"\b[A-Za-z]:[\\/](?:[^\s\\/:'\"<>|,;]+[\\/])*")


def cleaned(text: str, longest: int = LONGEST) -> str:
    """The text with every absolute path cut to its last part, tokens of devices removed, and not longer than this."""
    text = _TOKEN.sub("token removed", text)
    text = _FILE_URL.sub("", text)
    text = _POSIX.sub(lambda match: match[1], text)
    text = _WINDOWS.sub("", text)
    return text if len(text) <= longest else f"{text[:longest]}…"
