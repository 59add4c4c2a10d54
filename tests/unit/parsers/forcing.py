"""Drives the grammars of forced calls without a model: random tokens that the matcher allows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engines.parsers import registry
from engines.parsers.events import CallArguments, CallEnd, CallStart, Event
from engines.parsers.lark import Lark
from engines.parsers.pipeline import Pipeline
from engines.parsers.tools.deepseek import token
from engines.parsers.tools.forced import ROWS, Form, tools_of

END = "<|the end|>"
MOST_TOKENS = 4000
PHRASES = (
    '"', '",', '"}', "}", "]", ")", ", ", "null", "true", "12", "7.5", "x", "a<b", " é\n", "</",
    "'", "\\n", "</parameter>", "\n</parameter>\n", "</arg_value>", "</arg_value>\n", '<|"|>',
    "celsius",
)  # fmt: skip
"""What is tried before single bytes, so that texts of random bytes come to their end."""


def markers() -> list[str]:
    """What real tokenizers of the families have as tokens."""
    found = {
        *("<|from|>", "<|recipient|>", "<|content|>", "[ARGS]", '<|"|>', "<arg_key>", "</arg_key>"),
        *("<arg_value>", "</arg_value>", "<|tool_call_argument_begin|>", "<|constrain|>"),
        *("<|channel|>", "<|message|>", "<|start|>", token("tool sep")),
    }
    for form in (registry.tool_format(family) for family in ROWS):
        assert form is not None
        found |= {text for text in (*form.openers, *form.closers) if text[0] in "<["}
    return sorted(found - {"[Calling tool:", "<function=", "<invoke name="})


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer of bytes, with or without the families' markers as tokens."""

    matching: LLTokenizer
    tokens: dict[str, int]
    spelled: dict[int, bytes]

    @staticmethod
    @cache
    def of(*, special: bool) -> Vocabulary:
        alphabet = {char: at for at, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        added = [END, *(markers() if special else ())]
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added])
        tokens: dict[str, Any] = {text: tokenizer.token_to_id(text) for text in added}
        matching = LLTokenizer(tokenizer.to_str(), eos_token=tokens[END])
        spelled = {at: matching.decode_bytes([at]) for at in range(len(alphabet))}
        spelled |= {at: text.encode() for text, at in tokens.items()}
        return Vocabulary(matching, tokens, spelled)

    @property
    def end(self) -> int:
        return self.tokens[END]

    def matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self.matching, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error() + grammar
        return matcher


def answer(vocabulary: Vocabulary, grammar: str, seed: int, *, ends: float = 1.0) -> list[int]:
    """Tokens that the grammar allows, drawn at random.

    Where it is satisfied it goes on with all but a share of `ends`.
    """
    draw = random.Random(seed)
    matcher = vocabulary.matcher(grammar)
    phrases = [vocabulary.matching.tokenize_str(phrase, parse_special=True) for phrase in PHRASES]
    said: list[int] = []
    while not matcher.is_stopped():
        assert len(said) < MOST_TOKENS, bytes_of(vocabulary, said)
        if matcher.is_accepting() and draw.random() < ends:
            break
        chosen = draw.sample(phrases, 8) if draw.random() < 0.7 else []
        fitting = (each for each in chosen if matcher.validate_tokens(each) == len(each))
        next_tokens = next(fitting, None) or [draw.choice(allowed(vocabulary, matcher))]
        assert matcher.consume_tokens(next_tokens), matcher.get_error()
        said += next_tokens
    return said


def allowed(vocabulary: Vocabulary, matcher: LLMatcher) -> list[int]:
    bits = int.from_bytes(matcher.compute_bitmask(), "little")
    found = [at for at in vocabulary.spelled if bits >> at & 1 and at != vocabulary.end]
    assert found, "nothing is allowed"
    return found


def bytes_of(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocabulary.spelled[token] for token in tokens)


def grammar_of(
    vocabulary: Vocabulary, form: Form, tools: Any, tail: str = "", *, several: bool = False
) -> str:
    lark = Lark({text: at for text, at in vocabulary.tokens.items() if text != END})
    return lark.finish(form.calls(lark, tools_of(tools), tail, several=several))


def parsed(
    vocabulary: Vocabulary, tokens: Sequence[int], family: str, tools: Any, tail: str
) -> list[tuple[str, Any]]:
    """The complete calls that the family's parser finds; there must be nothing else."""
    pipeline = Pipeline(
        tool=family,
        reasoning="harmony" if family == "harmony" else None,
        tools=tools,
        stops=(),
        prompt_tail=tail,
        special_tokens=frozenset(vocabulary.tokens),
        thinking=None,
        new_call_id=lambda: "call_0",
    )
    events: list[Event] = []
    text = b""
    for drawn in tokens:
        if drawn in vocabulary.tokens.values():
            events += pipeline.feed(text.decode(), False)
            events += pipeline.feed(vocabulary.spelled[drawn].decode(), True)
            text = b""
        else:
            text += vocabulary.spelled[drawn]
    events += pipeline.feed(text.decode(), False)
    events += pipeline.finish("stop")
    said = bytes_of(vocabulary, tokens).decode()
    assert all(isinstance(each, CallStart | CallArguments | CallEnd) for each in events), (
        said, events,
    )  # fmt: skip
    starts = [each for each in events if isinstance(each, CallStart)]
    assert len(starts) == sum(isinstance(each, CallEnd) for each in events), (said, events)
    return [(start.name, json.loads(_arguments(events, start.index))) for start in starts]


def _arguments(events: Sequence[Event], index: int) -> str:
    return "".join(
        each.text for each in events if isinstance(each, CallArguments) and each.index == index
    )
