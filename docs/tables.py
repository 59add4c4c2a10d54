"""The tables of the pages, each from the part of the code that it is about. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Meta

from docs.command_line import command_line
from docs.routes import routes
from gateway.api.errors import ANTHROPIC, OPENAI, headers
from gateway.errors import GatewayError, MethodNotAllowed
from gateway.registry import schema
from gateway.registry.describe import describe, literals
from gateway.registry.schema import fields_of, reload_of

MANY_WORDS = 8
"""Longer lists of words are said elsewhere."""

_LOGS_ONLY = frozenset({"client_gone", "client_too_slow"})


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars within cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


# --- the registry -----------------------------------------------------------------------------


def keys(part: type[msgspec.Struct], *, but: type[msgspec.Struct] | None = None) -> str:
    """Every key of one part of the registry, without those that `but` has too."""
    left_out = fields_of(but) if but else {}
    head = ("Key", "Takes", "Default", "A change", "Meaning")
    return table(
        head, (_key(part, info) for name, info in fields_of(part).items() if name not in left_out)
    )


def _key(part: type[msgspec.Struct], info: msgspec.structs.FieldInfo) -> tuple[str, ...]:
    description = next(
        meta.description
        for meta in getattr(info.type, "__metadata__", ())
        if isinstance(meta, Meta) and meta.description and meta.extra
    )
    price = "restart" if reload_of(part, info.name) == "restart" else "at once"
    return (f"`{info.name}`", _takes(info), _default(info), price, description)


_SHORTER = (
    (r"a size from 0 [^:]*: [^|]*?512MB\"", "a size"),
    (r"a size greater than 0 [^:]*: [^|]*?512MB\"", "a size over 0"),
    (r"text of 1 to 256 characters without control characters [\w ]* end", "a name"),
    (r"text of 1 to \d+ characters", "text"),
    (r" with \w+, \w+, .*", ""),
    (r"a number from 0 to 31536000", "seconds"),
    (r"a number greater than 0 and at most 31536000", "seconds over 0"),
    (r" greater than 0 and at most \d{8,}", " over 0"),
    (r" from 0 to \d{8,}", ""),
    (r" from 1 to \d{8,}", " over 0"),
    (r", each item text\b", " of text"),
    (r", each item a (\w+)", r" of \1s"),
)
"""What `check` says in full when somebody has it wrong; a table is read by who has not."""


def _takes(info: msgspec.structs.FieldInfo) -> str:
    if len(literals(info.type)) > MANY_WORDS:
        return "a name of [this table](models.md#parsers)"
    words = describe(info.type)
    for pattern, shorter in _SHORTER:
        words = re.sub(pattern, shorter, words)
    return words.replace('"', "`")


def _default(info: msgspec.structs.FieldInfo) -> str:
    value = info.default
    if value is msgspec.NODEFAULT:
        if info.default_factory is msgspec.NODEFAULT:
            return "required"
        value = info.default_factory()
    if isinstance(value, msgspec.Struct):
        return "as below"
    if value is None:
        return "none"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{msgspec.json.encode(value).decode()}`"


# --- errors -----------------------------------------------------------------------------------


def codes() -> dict[str, type[GatewayError]]:
    """Every code that a client can be told, with the error that has it, in the tree's order."""
    found: dict[str, type[GatewayError]] = {}
    for kind in _below(GatewayError):
        if kind.code not in _LOGS_ONLY:
            found.setdefault(kind.code, kind)
    return found


def _below(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from _below(sub)


def errors() -> str:
    """How each error looks in either dialect, and whether to come again."""
    head = ("Code", "Status", "OpenAI `type`", "Anthropic", "Again?")
    rows = sorted(codes().items(), key=lambda item: item[1].status)
    return table(head, (_error(code, kind) for code, kind in rows))


def _error(code: str, kind: type[GatewayError]) -> tuple[str, ...]:
    error = kind("", allow="GET") if issubclass(kind, MethodNotAllowed) else kind("")
    openai = msgspec.json.decode(OPENAI.body(error, ""))["error"]["type"]
    anthropic = msgspec.json.decode(ANTHROPIC.body(error, ""))["error"]["type"]
    no = (b"x-should-retry", b"false") in headers(error)
    again = "yes" if kind.retryable else "no" if no else "maybe"
    return (
        f"[`{code}`](troubleshooting.md#{code})",
        str(OPENAI.status(error)),
        f"`{openai}`",
        f"{ANTHROPIC.status(error)} `{anthropic}`",
        again,
    )


TABLES: dict[str, Callable[[], str]] = {
    "manager": lambda: keys(schema.Manager),
    "contention policy": lambda: keys(schema.ContentionPolicy),
    "server": lambda: keys(schema.Server),
    "api keys": lambda: keys(schema.ApiKey),
    "entry": lambda: keys(schema.Entry, but=schema.Defaults),
    "defaults": lambda: keys(schema.Defaults),
    "scripted": lambda: keys(schema.Scripted),
    "errors": errors,
    "routes": lambda: table(("Method and path", "What it does", "A key needs"), routes()),
    "command line": command_line,
}
"""By the name in a page's mark."""
