"""`warm_prompts`: beginnings of conversations, in the registry or in a JSON file of their own.

Each is a list of chat messages, or a mapping with `messages` and the `tools` that requests declare.
They become what a request with the same messages and tools becomes, else they would be no beginning
of it. What is wrong in the registry is an error; what is wrong with a file is a warning, because
the file may be mended while the gateway runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.registry.schema import Entry

MOST_PROMPTS = 32
MAX_FILE_BYTES = 16 * 2**20

_PLACE = re.compile(r" - at `\$(.*)`$")
_NO_PARAMETERS = {"type": "object", "properties": {}}
_EXPECTED = {
    "role": "expected system, developer, user or assistant",
    "content": "expected text",
    "tools": 'expected a list of tools, each with type: function and a "function" with a name',
}
_PROMPT = "expected a list of messages, each with role and content, or a mapping with messages"


class WarmPrompt(msgspec.Struct, frozen=True):
    """A beginning in the neutral form of requests."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    type: Literal["text"] = "text"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Text]


class _Function(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct, frozen=True):
    function: _Function
    type: Literal["function"] = "function"


class _Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    tools: list[_Tool] = []


class WarmError(Exception):
    """What is wrong, at `place` below the list of prompts, such as `[1].messages[0].role`."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


def inline_problems(written: Any) -> Iterator[tuple[str, str]]:
    """Place and message of each prompt that is wrong in a value of `warm_prompts`."""
    if not isinstance(written, list):
        return
    if len(written) > MOST_PROMPTS:
        yield "", f"{len(written)} prompts; there may be {MOST_PROMPTS}"
    for index, item in enumerate(written[:MOST_PROMPTS]):
        try:
            _prompt(item, f"[{index}]")
        except WarmError as error:
            yield error.place, str(error)


def prompts_of(
    entry: Entry, *, base: Path, environ: Mapping[str, str]
) -> tuple[tuple[WarmPrompt, ...], str | None]:
    """The prompts of an entry, and what is wrong with its file; then there are none.

    Relative paths count from `base`, `~` is the home folder of `environ`.
    """
    written = entry.warm_prompts
    if not written:
        return (), None
    try:
        items = written if isinstance(written, list) else _read(written, base, environ)
        return tuple(_prompt(item, f"[{index}]") for index, item in enumerate(items)), None
    except WarmError as error:
        return (), f"{written}: {error.place}{': ' if error.place else ''}{error}"


def _read(written: str, base: Path, environ: Mapping[str, str]) -> list[Any]:
    home = environ.get("HOME")
    path = Path(home, written[2:]) if written.startswith("~/") and home else base / written
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise WarmError(
            "", f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise WarmError("", f"larger than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        items = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WarmError("", f"not JSON: {error}") from None
    if not isinstance(items, list):
        raise WarmError("", "expected a list of prompts")
    if len(items) > MOST_PROMPTS:
        raise WarmError("", f"{len(items)} prompts; there may be {MOST_PROMPTS}")
    return items


def _prompt(item: Any, place: str) -> WarmPrompt:
    """Raises `WarmError`."""
    whole = {"messages": item} if isinstance(item, list) else item
    try:
        prompt = msgspec.convert(whole, _Prompt)
    except msgspec.ValidationError as error:
        found = _PLACE.search(str(error))
        at = found[1] if found else ""
        if isinstance(item, list):
            at = at.removeprefix(".messages")
        key = "tools" if at.startswith(".tools") else at.rpartition(".")[2].partition("[")[0]
        raise WarmError(place + at, _EXPECTED.get(key, _PROMPT)) from None
    return WarmPrompt(
        [_neutral(message) for message in prompt.messages],
        [_declared(tool.function) for tool in prompt.tools],
    )


def _neutral(message: _Message) -> dict[str, Any]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _declared(function: _Function) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        declared["description"] = function.description
    declared["parameters"] = function.parameters or _NO_PARAMETERS
    return {"type": "function", "function": declared}
