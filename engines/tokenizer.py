"""The tokenizer worker: counts, cuts up and joins text for models that are not loaded.

One process for all models, without any weights. It keeps the tokenizers used last, by folder, and
answers with the same code as a loaded model. A scripted model has no folder; its words are counted.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from engines import wire
from engines.base import Emit, EngineError, Plain, Report
from engines.scripted import DEFAULT_CONTEXT_LENGTH
from engines.words import Words

MOST_TOKENIZERS = 8
"""A large one takes some 100 MB."""


class _Known(NamedTuple):
    vocabulary: Any
    context_length: int


class TokenizerEngine(Plain):
    """Implements `engines.base.Engine`; it takes no calls."""

    def __init__(self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit) -> None:
        self._known: OrderedDict[tuple[str, bool], _Known] = OrderedDict()
        self._words = Words()

    def load(self, report: Report) -> wire.Ready:
        """There is nothing to load; the libraries come with the first real tokenizer."""
        return wire.Ready(0, self.memory())

    def answer(self, question: wire.Ask) -> wire.Answer:
        """Raises `EngineError` for a folder without a usable tokenizer, too."""
        if isinstance(question, wire.ClearCache):
            return wire.Cleared(question.id, 0, 0)
        if isinstance(question, wire.CountTokens) and question.media:
            raise EngineError(
                "invalid_request",
                "media can be counted only while their model is loaded: load it first",
            )
        if isinstance(question, wire.Warm):
            raise EngineError("unsupported", "the tokenizer worker has no model to warm")
        if not question.path:
            return self._words.answer(question, DEFAULT_CONTEXT_LENGTH)
        known = self._of(question.path, question.trust_remote_code)
        answer: wire.Answer = known.vocabulary.answer(question, known.context_length)
        return answer

    def _of(self, path: str, trust_remote_code: bool) -> _Known:
        key = (path, trust_remote_code)
        if key not in self._known:
            self._known[key] = _load(Path(path), trust_remote_code)
            while len(self._known) > MOST_TOKENIZERS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def submit(self, request: wire.Request) -> None:
        raise EngineError("unsupported", "the tokenizer worker has no model")

    def cancel(self, call_id: int) -> None:
        """There are no calls."""

    def step(self) -> None:
        """There are no calls."""

    @property
    def busy(self) -> bool:
        return False

    @property
    def running(self) -> int:
        return 0

    @property
    def waiting(self) -> int:
        return 0

    def memory(self) -> wire.Memory:
        return wire.Memory()

    def close(self) -> None:
        self._known.clear()


def _load(path: Path, trust_remote_code: bool) -> _Known:
    from engines.text.model import build_tokenizer, context_length
    from engines.text.vocabulary import Vocabulary

    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
        tokenizer = build_tokenizer(path, config, trust_remote_code)
        return _Known(Vocabulary(tokenizer), context_length(config, None))
    except Exception as error:  # a checkpoint can be wrong in any way
        detail = " ".join(str(error).split())[:300]
        raise EngineError(
            "engine_error",
            f"the tokenizer in {path} is not usable: {type(error).__name__}: {detail}",
        ) from error
