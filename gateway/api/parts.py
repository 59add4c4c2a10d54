"""Contents of messages as engines take them: a text, or parts of text and media in their order.

Media are parts with an index into the media of their request. A content without media is a text,
because the templates of text models know nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Part = dict[str, Any]
Content = str | list[Part]


def joined(contents: Iterable[Content], between: str = "") -> Content:
    """One content of several; empty ones are left out, and `between` goes between two texts."""
    parts: list[Part] = []
    for content in contents:
        if not content:
            continue
        begun = bool(parts)
        for part in parts_of(content):
            if part["type"] == "text" and parts and parts[-1]["type"] == "text":
                text = parts[-1]["text"] + (between if begun else "") + part["text"]
                parts[-1] = text_part(text)
            else:
                parts.append(part)
            begun = False
    return _plain(parts)


def parts_of(content: Content) -> list[Part]:
    """The content as parts; an empty text has none."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return content


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def media_of(content: Content) -> list[Part]:
    """Its parts that are no text."""
    return [part for part in parts_of(content) if part["type"] != "text"]


def _plain(parts: Sequence[Part]) -> Content:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return list(parts)
