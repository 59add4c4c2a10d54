"""One line of a log, and the two forms in which it is written. Pure."""

from __future__ import annotations

import logging
import traceback
from typing import Any, Literal

import msgspec

Form = Literal["text", "json"]

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
MAX_CHARACTERS = 8_000
"""Of a line's text; what is longer is cut, so that one line cannot fill a ring."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """`at` is seconds since 1970; `fields` are what programs look for, by name.

    `source` is the logger, or `engine` for what an engine wrote to its stderr.
    """

    at: float
    level: str
    source: str
    line: str
    model: str | None = None
    fields: dict[str, Any] = {}


def line_of(record: logging.LogRecord) -> Line:
    """`extra={"fields": {...}}` of a log call becomes the fields; a traceback joins the text."""
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    fields = getattr(record, "fields", None) or {}
    return Line(
        at=round(record.created, 3),
        level=record.levelname,
        source=record.name,
        # A name of a file can hold bytes that are no text, which JSON cannot tell.
        line=cut(text.encode("utf-8", "replace").decode()),
        model=fields.get("model") or None,
        fields=fields,
    )


def cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ... (cut)"


class Formatter(logging.Formatter):
    """As text, or as one JSON object in each line with the fields beside the rest.

    `form` is asked for every line, as a reload may change it.
    """

    def __init__(self, form: Form = "text") -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self.form: Form = form

    def format(self, record: logging.LogRecord) -> str:
        return json_of(line_of(record)) if self.form == "json" else super().format(record)


def json_of(line: Line) -> str:
    """Names of the line's own go before fields of the same name."""
    own = {"at": line.at, "level": line.level, "source": line.source, "message": line.line}
    if line.model is not None:
        own["model"] = line.model
    told = {**line.fields, **own}
    try:
        return msgspec.json.encode(told, enc_hook=str).decode()
    except UnicodeEncodeError:  # half a character, as clients can send it in JSON
        plain = {name: _encodable(value) for name, value in told.items()}
        return msgspec.json.encode(plain, enc_hook=str).decode()


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
