"""Tokens are never shown: not in messages, not in tracebacks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_LOOKS_LIKE_ONE = re.compile(r"\bhf_[A-Za-z0-9]{8,}")
_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def redacted(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """`text` without the hub's token, wherever that came from."""
    known = [environ.get(name, "").strip() for name in _VARIABLES]
    if (hub := sys.modules.get("huggingface_hub")) is not None:
        known.append(hub.get_token() or "")
    for token in filter(None, known):
        text = text.replace(token, "***")
    return _LOOKS_LIKE_ONE.sub("***", text)
