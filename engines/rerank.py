"""The rerank engine: a query and documents in, how relevant each document is out, from 0 to 1.

Two kinds of models. A classifier reads the query and a document as one pair and has one logit; it
is mlx-vlm's. A yes/no model is a causal language model that is asked whether the document meets the
query; its score is the probability of "yes" against "no" as its next token. It is mlx-lm's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from engines import wire
from engines.base import Emit, EngineError, LoadError, Report, refuse_kind
from engines.text.limits import Mlx
from engines.text.model import (
    build_tokenizer,
    cast_half_precision,
    checked_directory,
    explain,
    materialise,
)
from engines.text.prompt import PromptEncoder
from engines.vectors.batches import Row
from engines.vectors.config import Config, cost_of, patched, positions_of
from engines.vectors.engine import Model, VectorEngine
from engines.vectors.sentence import read_json
from engines.vectors.tokens import Texts
from engines.vectors.weights import load_layers, padded_arrays

MOST_TOKENS = 8192
"""What yes/no models are used with; they have been trained for no more."""

_CLASSIFIERS = {
    "bert": "bert",
    "roberta": "xlm_roberta",
    "xlm-roberta": "xlm_roberta",
    "camembert": "xlm_roberta",
    "modernbert": "modernbert",
}
"""Kinds of models, and what mlx-vlm calls them."""

_YES_NO = frozenset({"qwen3"})

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".'
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_BEFORE = f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""The prompt of Qwen3-Reranker, as its model card has it."""


class RerankEngine(VectorEngine):
    """Implements `engines.base.Engine`."""

    def __init__(
        self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit, mlx: Mlx = mx
    ) -> None:
        super().__init__(spec, limits, emit, load, mlx)


def load(spec: wire.EngineSpec, report: Report) -> Model:
    """Raises `LoadError` with a sentence for the operator."""
    folder = checked_directory(spec.path)
    report(wire.Loading("reading configuration"))
    config = read_json(folder / "config.json", dict)
    kind = str(config.get("model_type", ""))
    try:
        if _is_classifier(config):
            return _load_classifier(spec, folder, config, report)
        if kind in _YES_NO:
            return _load_yes_no(spec, folder, config, report)
    except LoadError as error:
        raise LoadError(f"the model in {folder} cannot be loaded: {error}") from error
    except Exception as error:  # a checkpoint can be wrong in any way
        raise LoadError(explain(folder, error)) from error
    raise LoadError(
        f"the model in {folder} is of the kind {kind!r} without a head that scores pairs; those"
        f" with one are {', '.join(sorted(_CLASSIFIERS))}, and {', '.join(sorted(_YES_NO))} is"
        " asked for yes or no"
    )


def _is_classifier(config: Config) -> bool:
    names = config.get("architectures") or []
    return any(str(name).endswith("ForSequenceClassification") for name in names)


# --- classifiers ----------------------------------------------------------------------------------


def _load_classifier(
    spec: wire.EngineSpec, folder: Path, config: Config, report: Report
) -> Classifier:
    kind = str(config.get("model_type", ""))
    if kind not in _CLASSIFIERS:
        raise LoadError(
            f"a classifier of the kind {kind!r} is not served; {', '.join(_CLASSIFIERS)} are"
        )
    labels = _labels(config)
    if labels != 1:
        raise LoadError(f"it has {labels} labels; a model that ranks has one")
    family = _CLASSIFIERS[kind]
    layers = load_layers(
        folder,
        patched(config, family),
        report,
        model_class_name="SequenceClassificationModel",
        config_overrides={"num_labels": 1},
    )
    report(wire.Loading("building tokenizer"))
    tokenizer = build_tokenizer(folder, dict(config), spec.trust_remote_code)
    most = min(positions_of(config, family), spec.context_length or 2**31)
    texts = Texts(tokenizer, most, int(config["vocab_size"]))
    report(wire.Loading("first score"))
    return Classifier(layers, texts, config)


def _labels(config: Config) -> int:
    named = config.get("id2label")
    return int(config.get("num_labels") or (len(named) if isinstance(named, dict) else 2))


class _Scores:
    """What both kinds have in common: scores for the documents of a `Rerank`."""

    @property
    def dimensions(self) -> int | None:
        return None

    def outputs(self, request: wire.Request, results: Sequence[Any]) -> Iterator[wire.Output]:
        """Raises `EngineError` for what is no number."""
        scores = [float(score) for score in results]
        for index, score in enumerate(scores):
            if not np.isfinite(score):
                raise EngineError(
                    "engine_error", f"the model's score of documents[{index}] is not a number"
                )
        yield wire.Scores(request.id, scores)


class Classifier(_Scores):
    """Implements `engines.vectors.engine.Model`: one logit for each pair, through a sigmoid."""

    def __init__(self, layers: Any, texts: Texts, config: Config) -> None:
        self.texts = texts
        self.weights_bytes = _nbytes(layers)
        self.cost = cost_of(config, fused=mx.default_device() != mx.cpu)
        self._layers = layers
        self._typed = texts.typed and int(config.get("type_vocab_size", 0)) > 1
        # One pair, which also shows that the model runs at all.
        self.run(self._pairs("a", ["a"], truncate=True))

    def rows(self, request: wire.Request) -> list[Row]:
        """Raises `EngineError`."""
        if not isinstance(request, wire.Rerank):
            raise refuse_kind(request, "rerank")
        return self._pairs(request.query, request.documents, truncate=request.truncate)

    def _pairs(self, query: str, documents: Sequence[str], *, truncate: bool) -> list[Row]:
        pairs = self.texts.pairs(query, documents, truncate)
        return [
            Row(index, list(tokens), list(types) if self._typed else None)
            for index, (tokens, types) in enumerate(pairs)
        ]

    def run(self, rows: Sequence[Row]) -> Sequence[Any]:
        ids, mask, types = padded_arrays(rows, self.texts.pad)
        logits = self._layers(ids, attention_mask=mask, token_type_ids=types).logits
        return list(np.array(mx.sigmoid(logits.astype(mx.float32)))[:, 0])


# --- yes or no ------------------------------------------------------------------------------------


def _load_yes_no(spec: wire.EngineSpec, folder: Path, config: Config, report: Report) -> YesNo:
    model, read = load_model(folder, lazy=True, trust_remote_code=spec.trust_remote_code)
    if cast_half_precision(model):
        report(wire.Loading("casting float16 weights to float32, as this device is a CPU"))
    weights = materialise(model, report)
    report(wire.Loading("building tokenizer", weights, weights))
    tokenizer = build_tokenizer(folder, read, spec.trust_remote_code)
    most = min(positions_of(config, "qwen3"), spec.context_length or MOST_TOKENS)
    texts = Texts(tokenizer, most, int(config["vocab_size"]))
    report(wire.Loading("first score", weights, weights))
    return YesNo(model, texts, PromptEncoder(tokenizer), config)


class YesNo(_Scores):
    """Implements `engines.vectors.engine.Model`. Raises `LoadError` without the two words."""

    def __init__(self, model: Any, texts: Texts, prompts: PromptEncoder, config: Config) -> None:
        self.texts = texts
        self.weights_bytes = _nbytes(model)
        self.cost = cost_of(config, fused=mx.default_device() != mx.cpu)
        self._model = model
        self._prompts = prompts
        self._words = mx.array([self._word("yes"), self._word("no")])
        self._before, self._after = texts.content(_BEFORE), texts.content(_AFTER)
        # One pair, which also shows that the model runs at all.
        self.run([Row(0, self._row("a", "a"))])

    def _word(self, word: str) -> int:
        tokens = self.texts.content(word)
        if len(tokens) != 1:
            raise LoadError(f"the word {word!r} is not one token of this model")
        return tokens[0]

    def rows(self, request: wire.Request) -> list[Row]:
        """Raises `EngineError` for a query that leaves no room, or a pair that is too long."""
        if not isinstance(request, wire.Rerank):
            raise refuse_kind(request, "rerank")
        most = self.texts.max_tokens
        alone = len(self._row(request.query, ""))
        if alone >= most:
            raise EngineError(
                "context_length_exceeded",
                f"the query takes {alone} tokens and leaves no room for a document in the {most}"
                " that this model takes",
            )
        rows = []
        for index, document in enumerate(request.documents):
            tokens = self._row(request.query, document)
            if len(tokens) > most:
                if not request.truncate:
                    self.texts.fit(tokens, False, f"documents[{index}] with the query")
                tokens = tokens[: most - len(self._after)] + self._after
            rows.append(Row(index, tokens))
        return rows

    def _row(self, query: str, document: str) -> list[int]:
        text = f"<Instruct>: {_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        return [*self._before, *self._prompts.as_text(text), *self._after]

    def run(self, rows: Sequence[Row]) -> Sequence[Any]:
        """Rows are padded on the right, where a causal model does not look."""
        ids, _, _ = padded_arrays(rows, self.texts.pad)
        hidden = self._model.model(ids)
        last = mx.array([len(row.tokens) - 1 for row in rows])
        logits = self._logits(hidden[mx.arange(len(rows)), last])[:, self._words]
        difference = (logits[:, 0] - logits[:, 1]).astype(mx.float32)
        return list(np.array(mx.sigmoid(difference)))

    def _logits(self, hidden: Any) -> Any:
        """[rows, size] to [rows, vocabulary]."""
        if self._model.args.tie_word_embeddings:
            return self._model.model.embed_tokens.as_linear(hidden)
        return self._model.lm_head(hidden)


def _nbytes(model: Any) -> int:
    return sum(int(array.nbytes) for _, array in tree_flatten(model.parameters()))
