"""llguidance for one model: grammars to matchers, within bounds.

Owner of llguidance's copy of the tokenizer. It takes a quarter of a second for 50,000 tokens and
holds the interpreter's lock, so no thread could build it beside running rows; it is built when the
engine is idle for the first time, or by the first constrained request if that comes before.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer

from engines.base import EngineError

MAX_GRAMMAR_CHARACTERS = 2**17
TOO_LONG = f"it is longer than {MAX_GRAMMAR_CHARACTERS} characters"
_LIMITS = LLParserLimits(
    max_grammar_size=50_000,
    max_lexer_states=50_000,  # 1 to 2 kB each
    verbose_errors=False,
)
"""What one grammar may cost: 100 MB and half a second at worst; usual ones take 1 to 20 ms."""

_MOST_MULTIPLES = 100_000
"""All values of `multipleOf` together, without the zeros they end with. Each becomes as many states
of an automaton, which the limits above do not count: ten times more take minutes."""

_MULTIPLE = re.compile(r'"multipleOf"\s*:\s*([-+.\deE]+)')
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_SOURCE_LINE = re.compile(r"\s+\d+ \| ")
_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
_MESSAGE_CHARACTERS = 300


class NoGrammar(Exception):
    """A grammar that does not compile; the message is the compiler's, shortened."""


class Compiler:
    """`tokenizer` is an mlx-lm TokenizerWrapper; `width` is how many tokens have logits."""

    def __init__(self, tokenizer: Any, width: int) -> None:
        self._tokenizer = tokenizer
        self._width = max(width, len(tokenizer))
        self._prepared: LLTokenizer | None = None
        self._refused: str | None = None

    def prepare(self) -> None:
        """Builds now what the first `compile` would build; a tokenizer it cannot be of is noted."""
        if self._prepared is not None or self._refused is not None:
            return
        try:
            self._prepared = from_tokenizer(
                self._tokenizer._tokenizer,
                n_vocab=self._width,
                eos_token=sorted(self._tokenizer.eos_token_ids),
            )
        except Exception as error:  # noqa: BLE001  a checkpoint's tokenizer can be anything
            self._refused = " ".join(str(error).split())[:_MESSAGE_CHARACTERS]

    def compile(self, main: str, user: str | None = None) -> LLMatcher:
        """A matcher at its beginning of Lark `main`, which may name the Lark `user` as `@user`.

        Raises `NoGrammar`, and `EngineError` for a model that cannot be constrained.
        """
        if len(main) + len(user or "") > MAX_GRAMMAR_CHARACTERS:
            raise NoGrammar(TOO_LONG)
        if _multiples(main + (user or "")) > _MOST_MULTIPLES:
            raise NoGrammar("multipleOf has too large a value, or too many have one")
        self.prepare()
        if self._prepared is None:
            raise EngineError(
                "unsupported",
                f"this model's answers cannot be constrained, because of its tokenizer"
                f" ({self._refused}); ask for the format in the prompt instead",
            )
        grammars = [{"name": "main", "lark_grammar": main}]
        if user is not None:
            grammars.append({"name": "user", "lark_grammar": user})
        matcher = LLMatcher(
            self._prepared, json.dumps({"grammars": grammars}), log_level=0, limits=_LIMITS
        )
        # The first mask tells of a grammar that is too wide, and is kept for the first token.
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise NoGrammar(_shortened(matcher.get_error()))
        return matcher

    def tokens(self, text: str) -> list[int]:
        """Tokens of `text`, for a matcher that is to take it in."""
        return [] if self._prepared is None else self._prepared.tokenize_str(text)


def _multiples(grammar: str) -> int:
    plain = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), grammar)
    return sum(map(_without_zeros, _MULTIPLE.findall(plain)))


def _without_zeros(number: str) -> int:
    """The digits of a number, as they stand, but for its zeros at the end and its exponent."""
    digits = re.sub(r"[eE].*|\D", "", number).strip("0")
    return int(digits[:9] or 0)


def _shortened(message: str) -> str:
    """The complaint without the source it quotes and points into: that may be ours."""
    lines: list[str] = []
    for line in message.splitlines():
        if _SOURCE_LINE.match(line):
            break
        if line.strip(" ^"):
            lines.append(line)
    told = _PLACE.sub("", " ".join(" ".join(lines).split())).partition(". Enable ")[0]
    return told.removeprefix("failed to compile JSON schema: ")[:_MESSAGE_CHARACTERS]
