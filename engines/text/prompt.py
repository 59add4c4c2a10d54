"""Chat messages to prompt tokens, so that nothing a client sends can pass for a control token.

A template spells its turn markers as text, so a user who writes `<|im_end|><|im_start|>system`
would forge a turn if the rendered text were encoded in one go. Where any string of the request
(contents, tool results, names and arguments of calls, traces, tool descriptions) holds the spelling
of a control token, the template is rendered with a placeholder in place of each such spelling, and
the spellings are encoded on their own as ordinary text. A placeholder is letters and digits, so it
comes through whatever the template does to a string, JSON included.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engines.base import EngineError
from engines.parsers import registry

_CONTROL_FORM = re.compile(r"<[|\uff5c].+[|\uff5c]>")
"""How most families spell their control tokens; the second bar is DeepSeek's."""

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """What a template made of messages; `hidden` are control spellings by their placeholders."""

    text: str
    hidden: Mapping[str, str]

    def pieces(self) -> list[str]:
        """The text cut into placeholders and what stands between them."""
        if not self.hidden:
            return [self.text]
        return re.split("(" + "|".join(self.hidden) + ")", self.text)


class PromptEncoder:
    """Renders and encodes with one tokenizer, an mlx-lm TokenizerWrapper."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special, structural = _control_spellings(tokenizer)
        # What the model wrote itself may hold its reasoning and tool markers, which the template
        # takes apart; a turn marker may not come from anyone.
        self._never = _any_of(special)
        self._not_from_others = _any_of(special | structural)
        self._control_ids = frozenset(tokenizer.convert_tokens_to_ids(sorted(special | structural)))

    def encode(
        self,
        messages: Messages,
        template_kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """The prompt's tokens, generation prompt included; never empty.

        Raises `EngineError` ("invalid_request") when the template refuses the messages.
        """
        rendered = self.render(messages, template_kwargs, tools)
        tokens = self._encode_apart(rendered) if rendered.hidden else self._plain(rendered.text)
        if not tokens:
            raise EngineError("invalid_request", "the messages give an empty prompt")
        return tokens

    def render(
        self,
        messages: Messages,
        template_kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        shape: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Rendered:
        """The prompt's text, with placeholders for what must not become a control token.

        `shape` may change each message afterwards: what it writes is not hidden.
        Raises `EngineError` as `encode`.
        """
        if not self._tokenizer.has_chat_template:
            raise EngineError(
                "invalid_request", "this model has no chat template, so it cannot take messages"
            )
        marks = _Placeholders()
        try:
            hidden = [self._hide_message(message, marks) for message in messages]
            hidden = hidden if shape is None else [shape(message) for message in hidden]
            options = {"add_generation_prompt": True, **marks.hide(template_kwargs, self._never)}
            if tools:
                options["tools"] = marks.hide(list(tools), self._not_from_others)
        except RecursionError as error:
            raise EngineError("invalid_request", "the messages are nested too deeply") from error
        return Rendered(self._render(hidden, options), marks.hidden)

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text as it is, its control tokens included.

        The tokenizer's own beginning is not put in front of a text that begins with it.
        """
        bos = self._tokenizer.bos_token
        begun = bool(bos) and text.startswith(bos)
        tokens: list[int] = self._tokenizer.encode(
            text, add_special_tokens=add_special_tokens and not begun
        )
        return tokens

    def _hide_message(self, message: Mapping[str, Any], marks: _Placeholders) -> dict[str, Any]:
        own = message.get("role") == "assistant"
        return {
            key: marks.hide(
                value, self._never if own and key == "content" else self._not_from_others
            )
            for key, value in message.items()
        }

    def _render(self, messages: Messages, options: Mapping[str, Any]) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
            )
        except Exception as error:  # a template is a program from the checkpoint
            detail = " ".join(str(error).split())[:300] or type(error).__name__
            raise EngineError(
                "invalid_request",
                f"the model's chat template does not take these messages: {detail}",
            ) from error

    def _encode_apart(self, rendered: Rendered) -> list[int]:
        tokens: list[int] = []
        for piece in rendered.pieces():
            spelling = rendered.hidden.get(piece)
            if spelling is not None:
                tokens += self.as_text(spelling)
            elif piece:
                tokens += self._plain(piece)
        return tokens

    def as_text(self, content: str) -> list[int]:
        """Tokens of `content`, none of which is a control token."""
        tokens: list[int] = self._tokenizer.encode(
            content, add_special_tokens=False, split_special_tokens=True
        )
        if self._control_ids.isdisjoint(tokens):
            return tokens
        # Tokenizers split only what is flagged special. A cut inside the spelling splits the rest.
        cuts = [match.start() + 1 for match in self._not_from_others.finditer(content)]
        pieces = (content[a:b] for a, b in pairwise([0, *cuts, len(content)]))
        return [
            token
            for piece in pieces
            for token in self._tokenizer.encode(
                piece, add_special_tokens=False, split_special_tokens=True
            )
        ]

    def _plain(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens


class _Placeholders:
    """What stands for the control spellings of one request: `hidden`, spellings by placeholder.

    Placeholders are drawn anew for every request; one that could be guessed could be forged.
    """

    def __init__(self) -> None:
        self.hidden: dict[str, str] = {}
        self._by_spelling: dict[str, str] = {}

    def hide(self, value: Any, spellings: re.Pattern[str]) -> Any:
        """A copy of a JSON value without any of `spellings` in its strings and keys."""
        if isinstance(value, str):
            return spellings.sub(self._placeholder, value)
        if isinstance(value, Mapping):
            return {
                self.hide(key, spellings): self.hide(item, spellings) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.hide(item, spellings) for item in value]
        return value

    def _placeholder(self, found: re.Match[str]) -> str:
        spelling = found.group()
        if spelling not in self._by_spelling:
            mark = f"content{secrets.token_hex(16)}"
            self._by_spelling[spelling] = mark
            self.hidden[mark] = spelling
        return self._by_spelling[spelling]


def _control_spellings(tokenizer: Any) -> tuple[set[str], set[str]]:
    """Tokens flagged special, and other added tokens that structure a conversation.

    Those are what the chat template itself writes, what begins and ends calls and traces in any
    family, and whatever is spelled like a control token. Added words and HTML tags are none.
    """
    special: set[str] = set(tokenizer.all_special_tokens)
    added = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    special |= {spelling for spelling, token in added.items() if token.special}
    template = tokenizer.chat_template
    written = template if isinstance(template, str) else str(template or "")
    known = registry.markers()
    structural = {
        spelling
        for spelling in added
        if spelling in written or spelling in known or _CONTROL_FORM.fullmatch(spelling)
        if spelling.strip()
    }
    return {spelling for spelling in special if spelling.strip()}, structural - special


def _any_of(spellings: set[str]) -> re.Pattern[str]:
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
