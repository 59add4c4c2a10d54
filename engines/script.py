"""What a scripted model says and does: its options, its scripts, and one reply told piece by piece.

Pure: no clock, no I/O. A token is a whitespace-separated word with the space around it; a delta of
a script counts its words, and at least one.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

from engines.base import EngineError, LoadError
from engines.words import count_words, words

GIB = 1024**3

DEFAULT_REPLY = (
    "This is a scripted reply: it is always the same, and no model has thought about it."
)
MAX_SLEEP_S = 3600.0

_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]


class ExitAtLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exit: _ExitCode


LoadStep = Literal["ok", "error", "hang"] | ExitAtLoad


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `scripted:` section of a registry entry, and the load's number in it.

    `size_gb` and `kv_gb_per_1k` (per 1,000 tokens) are claims in GiB; nothing is allocated.
    `exit_after`, `hang_after` and `freeze_after` count the deltas of the whole process.
    `load_number` is how many loads of the entry came before this one: every load is a new
    process, so only the gateway can count them.
    """

    size_gb: _Amount = 0.0
    kv_gb_per_1k: _Amount = 0.0
    load_s: _Amount = 0.0
    load_stall_at: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    prefill_s: _Amount = 0.0
    fail_loads: _Count | list[LoadStep] = 0
    exit_after: _Count | None = None
    hang_after: _Count | None = None
    freeze_after: _Count | None = None
    ignore_term: bool = False
    stderr_flood: bool | _Count = False
    deltas: str | list[str] | _Count = DEFAULT_REPLY
    vector_dim: Annotated[int, msgspec.Meta(ge=1, le=8192)] = 384
    load_number: _Count = 0

    def load_step(self) -> LoadStep:
        """What this load does in the end."""
        if isinstance(self.fail_loads, int):
            return "error" if self.load_number < self.fail_loads else "ok"
        if self.load_number < len(self.fail_loads):
            return self.fail_loads[self.load_number]
        return "ok"

    def reply(self) -> Script:
        """The default reply; `deltas` may be a text, its deltas, or a number of words."""
        if isinstance(self.deltas, int):
            deltas = [f"word{number} " for number in range(1, self.deltas + 1)]
        else:
            deltas = words(self.deltas) if isinstance(self.deltas, str) else self.deltas
        return Script([Say(delta) for delta in deltas])


def options(given: dict[str, Any]) -> Options:
    """Raises `LoadError` naming the key at fault."""
    try:
        return msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        raise LoadError(f"scripted: {str(error).replace('$.', '')}") from error


# --- the steps of a script ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Bytes:
    """One token that is not text by itself; characters may be spread over several."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Special:
    """A special token. No text comes of it unless a parser claims it, as with any model."""

    text: str


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Raise:
    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    code: int


Finish = Literal["stop", "length"]
Step = Say | Bytes | Special | Sleep | Raise | Exit


@dataclass(frozen=True)
class Script:
    """`prompt_tail` is the end of the prompt that the answer is said to follow."""

    steps: Sequence[Step]
    finish: Finish = "stop"
    prompt_tail: str = ""

    @cached_property
    def special_tokens(self) -> frozenset[str]:
        return frozenset(step.text for step in self.steps if isinstance(step, Special))


def script_in(messages: Sequence[dict[str, Any]]) -> Script | None:
    """The script that the last user message is, or None when it is an ordinary message.

    Raises `EngineError` for a script with a step that makes no sense.
    """
    given = _script_object(messages)
    if given is None:
        return None
    steps = [_step(number, step) for number, step in enumerate(given["script"])]
    finish = given.get("finish", "stop")
    if finish not in ("stop", "length"):
        raise EngineError("invalid_request", 'script: finish must be "stop" or "length"')
    prompt_tail = given.get("prompt_tail", "")
    if not isinstance(prompt_tail, str):
        raise EngineError("invalid_request", "script: prompt_tail must be a text")
    return Script(steps, finish, prompt_tail)


def _script_object(messages: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    for message in reversed(messages):
        if message.get("role") == "user":
            break
    else:
        return None
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part["text"]) for part in content if part.get("type") == "text")
    if not isinstance(content, str) or not content.lstrip().startswith("{"):
        return None
    try:
        given = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) and isinstance(given.get("script"), list) else None


def _step(number: int, step: object) -> Step:
    match step:
        case str(text):
            return Say(text)
        case dict() if len(step) == 1:
            ((key, value),) = step.items()
            made = _named_step(str(key), value)
            if made is not None:
                return made
    raise EngineError(
        "invalid_request",
        f"script[{number}] must be a text or one of"
        ' {"raise": text}, {"exit": true or a code}, {"sleep": seconds}, {"hex": bytes},'
        ' {"token": text}',
    )


def _named_step(key: str, value: object) -> Step | None:
    match key, value:
        case "raise", str(text):
            return Raise(text)
        case "exit", int(code) if code is not False and 0 <= code <= 255:
            return Exit(int(code))
        case "sleep", (int() | float()) as seconds if not isinstance(seconds, bool):
            return Sleep(float(seconds)) if 0 <= seconds <= MAX_SLEEP_S else None
        case "token", str(text):
            return Special(text)
        case "hex", str(digits):
            return _bytes(digits)
        case _:
            return None


def _bytes(digits: str) -> Bytes | None:
    try:
        return Bytes(bytes.fromhex(digits))
    except ValueError:
        return None


# --- one reply ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """Pieces of text, each with whether it is a special token (None where nothing tells tokens).

    `tokens` is what they cost together. After an `end` nothing follows.
    """

    pieces: tuple[tuple[str, bool | None], ...]
    tokens: int
    end: Finish | None = None


Piece = Said | Sleep | Raise | Exit


class Reply:
    """Tells a script within `max_tokens`, in whole characters."""

    def __init__(self, script: Script, max_tokens: int) -> None:
        self._script = script
        self._at = 0
        self._text_is_special = False if script.special_tokens else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._undecoded = False
        self._max_tokens = max_tokens
        self.tokens = 0

    def advance(self) -> Piece:
        """The next piece; after the end, the end again. Not to be called after a `Raise`."""
        if self._at == len(self._script.steps):
            return self._say("", 0)
        step = self._script.steps[self._at]
        self._at += 1
        match step:
            case Say(text):
                return self._say_words(text)
            case Bytes(data):
                self._undecoded = True
                return self._say(self._decoder.decode(data), 1)
            case Special(text):
                return self._say(self._rest_of_bytes(), 1, text)
            case Sleep() | Raise() | Exit():
                return step

    def _say_words(self, text: str) -> Said:
        tokens = count_words(text) or 1
        room = self._max_tokens - self.tokens
        if tokens > room:
            text, tokens = "".join(words(text)[:room]), room
        return self._say(self._rest_of_bytes() + text, tokens)

    def _rest_of_bytes(self) -> str:
        """What bytes that never became a character turn into."""
        if not self._undecoded:
            return ""
        self._undecoded = False
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text

    def _say(self, text: str, tokens: int, special: str = "") -> Said:
        self.tokens += tokens
        end = self._end()
        if end is not None:
            text += self._rest_of_bytes()
        pieces: list[tuple[str, bool | None]] = [(text, self._text_is_special)] if text else []
        if special:
            pieces.append((special, True))
        return Said(tuple(pieces), tokens, end)

    def _end(self) -> Finish | None:
        if self.tokens >= self._max_tokens:
            return "length"
        if self._at == len(self._script.steps):
            return self._script.finish
        return None
