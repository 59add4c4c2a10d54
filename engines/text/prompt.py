"""Chat messages to prompt tokens, so that no message can pass for a control token.

A template spells its turn markers as text, so a user who writes `<|im_end|><|im_start|>system`
would forge a turn if the rendered text were encoded in one go. When a message holds the spelling
of a control token, the template is rendered with a placeholder in place of each content, and the
contents are encoded on their own as ordinary text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from engines.base import EngineError

Messages = Sequence[Mapping[str, Any]]


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

    def encode(self, messages: Messages, template_kwargs: Mapping[str, Any]) -> list[int]:
        """The prompt's tokens, generation prompt included; never empty.

        Raises `EngineError` ("invalid_request") when the template refuses the messages.
        """
        if not self._tokenizer.has_chat_template:
            raise EngineError(
                "invalid_request", "this model has no chat template, so it cannot take messages"
            )
        if any(self._forges(message) for message in messages):
            tokens = self._encode_apart(messages, template_kwargs)
        else:
            tokens = self._plain(self._render(messages, template_kwargs))
        if not tokens:
            raise EngineError("invalid_request", "the messages give an empty prompt")
        return tokens

    def _forges(self, message: Mapping[str, Any]) -> bool:
        content = message.get("content")
        if not isinstance(content, str):
            return False
        own = message.get("role") == "assistant"
        return (self._never if own else self._not_from_others).search(content) is not None

    def _render(self, messages: Messages, template_kwargs: Mapping[str, Any]) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    **{"add_generation_prompt": True, **template_kwargs},
                )
            )
        except Exception as error:  # a template is a program from the checkpoint
            detail = " ".join(str(error).split())[:300] or type(error).__name__
            raise EngineError(
                "invalid_request",
                f"the model's chat template does not take these messages: {detail}",
            ) from error

    def _encode_apart(self, messages: Messages, template_kwargs: Mapping[str, Any]) -> list[int]:
        contents: dict[str, str] = {}
        hidden = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, str) and self._forges(message):
                # Not to be guessed, or a content could name another one's place.
                mark = f"content{secrets.token_hex(16)}"
                contents[mark] = content
                message = {**message, "content": mark}  # noqa: PLW2901
            hidden.append(message)
        marks = re.compile("(" + "|".join(contents) + ")")
        tokens: list[int] = []
        for piece in marks.split(self._render(hidden, template_kwargs)):
            content = contents.get(piece)
            tokens += self._plain(piece) if content is None else self._as_text(content)
        return tokens

    def _as_text(self, content: str) -> list[int]:
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


def _control_spellings(tokenizer: Any) -> tuple[set[str], set[str]]:
    """Tokens flagged special, and other added tokens that the chat template itself writes."""
    special: set[str] = set(tokenizer.all_special_tokens)
    added = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    special |= {spelling for spelling, token in added.items() if token.special}
    template = tokenizer.chat_template
    written = template if isinstance(template, str) else str(template or "")
    structural = {spelling for spelling in added if spelling.strip() and spelling in written}
    return {spelling for spelling in special if spelling.strip()}, structural - special


def _any_of(spellings: set[str]) -> re.Pattern[str]:
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
