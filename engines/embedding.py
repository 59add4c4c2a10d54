"""The embedding engine on mlx-vlm: texts and token lists in, one float32 vector for each out.

The layers are mlx-vlm's; what makes one vector of their output, and of a text what goes in, is read
from the checkpoint and done here (`engines.vectors`), because mlx-vlm's loader refuses the layers
behind the pooling and always normalises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from engines import wire
from engines.base import Emit, EngineError, LoadError, Report, refuse_kind
from engines.text.limits import Mlx
from engines.text.model import build_tokenizer, checked_directory, explain
from engines.vectors.batches import Row
from engines.vectors.config import Config, cost_of, patched, positions_of
from engines.vectors.engine import VectorEngine
from engines.vectors.pooling import normalised, pool
from engines.vectors.sentence import Mode, Pooling, Sentence, read_json, read_sentence
from engines.vectors.tokens import Texts
from engines.vectors.weights import DenseLayer, load_layers, padded_arrays

MOST_ANSWER_BYTES = 32 * 2**20
"""Of one request's vectors together."""


@dataclass(frozen=True, slots=True)
class _Family:
    """What mlx-vlm calls a kind of model, and how it pools where its folder does not say.

    `whole`: its model does everything up to the normalised vector. `matryoshka` are the lengths
    that its makers declare, where its config has no place for them; empty is none.
    """

    name: str
    mode: Mode = "mean"
    whole: bool = False
    matryoshka: range | tuple[int, ...] = ()


_FAMILIES = {
    "bert": _Family("bert"),
    "roberta": _Family("xlm_roberta"),
    "xlm-roberta": _Family("xlm_roberta"),
    "camembert": _Family("xlm_roberta"),
    "modernbert": _Family("modernbert"),
    "qwen3": _Family("qwen3_embedding", "lasttoken", matryoshka=range(32, 2**16)),
    "gemma3_text": _Family("gemma3_embedding", whole=True, matryoshka=(128, 256, 512)),
    "lfm2": _Family("lfm2_embedding", "cls"),
    "ministral3": _Family("ministral3_embedding"),
    "llama_bidirec": _Family("llama_bidirec"),
}


class EmbeddingEngine(VectorEngine):
    """Implements `engines.base.Engine`."""

    def __init__(
        self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit, mlx: Mlx = mx
    ) -> None:
        super().__init__(spec, limits, emit, load, mlx)


def load(spec: wire.EngineSpec, report: Report) -> Embedder:
    """Raises `LoadError` with a sentence for the operator."""
    folder = checked_directory(spec.path)
    report(wire.Loading("reading configuration"))
    config = read_json(folder / "config.json", dict)
    family = _family(folder, config)
    try:
        return _load(spec, folder, config, family, report)
    except LoadError as error:
        raise LoadError(f"the model in {folder} cannot be loaded: {error}") from error
    except Exception as error:  # a checkpoint can be wrong in any way
        raise LoadError(explain(folder, error)) from error


def _family(folder: Path, config: Config) -> _Family:
    kind = str(config.get("model_type", ""))
    if kind not in _FAMILIES:
        raise LoadError(
            f"the model in {folder} is of the kind {kind!r}, of which no embeddings can be made"
            f" here; known are {', '.join(sorted(_FAMILIES))}"
        )
    if (folder / "1_Dense").is_dir():
        raise LoadError(
            f"the model in {folder} gives a vector for every token (1_Dense), not one for a text"
        )
    return _FAMILIES[kind]


def _load(
    spec: wire.EngineSpec, folder: Path, config: Config, family: _Family, report: Report
) -> Embedder:
    sentence = read_sentence(folder)
    pooling = sentence.pooling or Pooling((family.mode,))
    layers = load_layers(folder, patched(config, family.name), report, whole=family.whole)
    dense = [] if family.whole else [DenseLayer(layer) for layer in sentence.dense]
    if family.whole:
        if len(pooling.modes) > 1 or not pooling.include_prompt:
            raise LoadError(f"this kind of model has no pooling like {pooling}")
        layers.pooling_config = {"pooling_mode": pooling.modes[0]}
    report(wire.Loading("building tokenizer"))
    tokenizer = build_tokenizer(folder, dict(config), spec.trust_remote_code)
    most = min(
        positions_of(config, family.name),
        sentence.max_tokens or 2**31,
        spec.context_length or 2**31,
    )
    texts = Texts(tokenizer, most, int(config["vocab_size"]))
    report(wire.Loading("first vector"))
    return Embedder(
        _Encoder(layers, tuple(dense), pooling, sentence.normalise, family.whole),
        texts,
        replace(sentence, pooling=pooling),
        config,
        family.matryoshka,
    )


@dataclass(frozen=True, slots=True)
class _Encoder:
    """Token ids to vectors. `whole`: the layers already end in normalised vectors."""

    layers: Any
    dense: tuple[DenseLayer, ...]
    pooling: Pooling
    normalise: bool
    whole: bool

    @property
    def nbytes(self) -> int:
        layers = sum(int(array.nbytes) for _, array in tree_flatten(self.layers.parameters()))
        return layers + sum(layer.nbytes for layer in self.dense)

    def __call__(self, rows: Sequence[Row], pad: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[rows, dimensions]; not normalised if the checkpoint is not."""
        ids, mask, types = padded_arrays(rows, pad)
        made = self.layers(ids, attention_mask=mask, token_type_ids=types)
        if self.whole:
            vectors = made.text_embeds.astype(mx.float32)
        else:
            vectors = pool(made.last_hidden_state, self._pooled(mask, rows), self.pooling)
            for layer in self.dense:
                vectors = layer(vectors)
        if self.normalise:
            vectors = normalised(vectors)
        return np.array(vectors)

    def _pooled(self, mask: Any, rows: Sequence[Row]) -> Any:
        """The mask of the tokens that count: all, or those behind the prompt."""
        if self.pooling.include_prompt:
            return mask
        prompts = mx.array([row.prompt for row in rows])
        return mask * (mx.arange(mask.shape[1])[None] >= prompts[:, None])


class Embedder:
    """Implements `engines.vectors.engine.Model`."""

    def __init__(
        self,
        encoder: _Encoder,
        texts: Texts,
        sentence: Sentence,
        config: Config,
        matryoshka: Sequence[int],
    ) -> None:
        self.texts = texts
        self.weights_bytes = encoder.nbytes
        self.cost = cost_of(config, fused=mx.default_device() != mx.cpu)
        self._encoder = encoder
        self._sentence = sentence
        # One text, which also shows that the model runs at all.
        first = encoder([Row(0, texts.encode(["a"])[0])], texts.pad)
        self.dimensions: int = first.shape[1]
        self._shorter = _declared(config) or tuple(
            length for length in matryoshka if length < self.dimensions
        )

    def rows(self, request: wire.Request) -> list[Row]:
        """Raises `EngineError` for what cannot be embedded, naming the input."""
        if not isinstance(request, wire.Embed):
            raise refuse_kind(request, "embeddings")
        self._check_size(request)
        prompt = self._prompt(request.prompt)
        texts = iter(
            self.texts.encode([prompt + one for one in request.inputs if isinstance(one, str)])
        )
        skipped = len(self.texts.before) + len(self.texts.content(prompt)) if prompt else 0
        rows = []
        for index, given in enumerate(request.inputs):
            what = f"input[{index}]"
            tokens = next(texts) if isinstance(given, str) else self.texts.wrap(given, prompt, what)
            if not tokens:
                raise EngineError("invalid_request", f"{what} is empty: it has no tokens")
            rows.append(Row(index, self.texts.fit(tokens, request.truncate, what), prompt=skipped))
        return rows

    def run(self, rows: Sequence[Row]) -> Sequence[Any]:
        return list(self._encoder(rows, self.texts.pad))

    def outputs(self, request: wire.Request, results: Sequence[Any]) -> Iterator[wire.Output]:
        """The vectors as little-endian float32. Raises `EngineError` for what is no number."""
        assert isinstance(request, wire.Embed)
        vectors = np.stack(results)[:, : request.dimensions]
        if request.dimensions is not None and self._sentence.normalise:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        if not np.isfinite(vectors).all():
            index = int(np.argmin(np.isfinite(vectors).all(axis=1)))
            raise EngineError(
                "engine_error", f"the model's vector of input[{index}] is not made of numbers"
            )
        data = vectors.astype("<f4").tobytes()
        for seq, at in enumerate(range(0, len(data), wire.MAX_PART_BYTES)):
            yield wire.Bytes(request.id, seq, data[at : at + wire.MAX_PART_BYTES])

    def _check_size(self, request: wire.Embed) -> None:
        wanted = request.dimensions
        if wanted is not None and wanted != self.dimensions and wanted not in self._shorter:
            known = f"; it can be shortened to {_few(self._shorter)}" if self._shorter else ""
            raise EngineError(
                "unsupported",
                f"dimensions is {wanted}, but a vector of this model has {self.dimensions}{known}",
            )
        nbytes = 4 * len(request.inputs) * (wanted or self.dimensions)
        if nbytes > MOST_ANSWER_BYTES:
            raise EngineError(
                "invalid_request",
                f"the vectors of {len(request.inputs)} inputs would take {nbytes:,} bytes; the"
                f" limit is {MOST_ANSWER_BYTES:,}: send fewer at a time",
            )

    def _prompt(self, name: str | None) -> str:
        try:
            return self._sentence.prompts.find(name)
        except KeyError:
            known = ", ".join(self._sentence.prompts.texts) or "no prompts"
            raise EngineError(
                "invalid_request", f"this model has no prompt {name!r}; it has {known}"
            ) from None


def _declared(config: Config) -> tuple[int, ...]:
    given = config.get("matryoshka_dimensions")
    return tuple(n for n in given if isinstance(n, int)) if isinstance(given, list) else ()


def _few(lengths: Sequence[int]) -> str:
    if len(lengths) > 16:
        return f"any length from {lengths[0]}"
    return ", ".join(map(str, lengths))
