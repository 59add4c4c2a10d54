"""Loading a vision model with mlx-vlm, and what the engine must know about it.

The processor's tokenizer is its own; the engine has a second one of mlx-lm for everything that has
to do with text, so that a chat with a vision model is read and parsed as one with a text model is.
"""

from __future__ import annotations

import inspect
import json
import secrets
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_vlm.models import cache as caches
from mlx_vlm.utils import load as load_model_and_processor
from tokenizers import AddedToken

from engines import wire
from engines.base import LoadError, Report
from engines.text.model import (
    KvCost,
    build_tokenizer,
    cast_half_precision,
    checked_directory,
    context_length,
    explain,
    kv_cost,
    materialise,
)
from engines.vision.features import CachedTower, FeatureCache

BATCHED_KINDS = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})
"""Kinds of which a test shows that rows joining and leaving change no other row's answer. Models
of any other kind answer one call at a time: several keep positions on the module between calls."""

_TOWERS = ("vision_tower", "vision_model", "visual", "vision_encoder")


@dataclass(frozen=True, slots=True)
class LoadedVision:
    """A model in memory. `model` and `processor` are mlx-vlm's, `tokenizer` is mlx-lm's."""

    model: Any
    processor: Any
    tokenizer: Any
    kind: str
    context_length: int
    weights_bytes: int
    vocabulary_size: int
    kv: KvCost
    cast_bytes: int
    modalities: tuple[wire.Modality, ...]
    tower: CachedTower | None
    """None where the model has no tower of a name that is known; nothing is cached then."""
    mark: str
    mark_id: int
    """A token that only the processor's tokenizer has, to hold a place in a prompt."""

    @property
    def batchable(self) -> bool:
        return self.kind in BATCHED_KINDS


def load(spec: wire.EngineSpec, features: FeatureCache, report: Report) -> LoadedVision:
    """Loads the model of `spec.path`, reporting each stage before it starts.

    Raises `LoadError` with a sentence for the operator.
    """
    path = checked_directory(spec.path)
    try:
        report(wire.Loading("reading configuration"))
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        model, processor = load_model_and_processor(
            str(path), lazy=True, trust_remote_code=spec.trust_remote_code
        )
        cast = cast_half_precision(model)
        if cast:
            report(wire.Loading("casting float16 weights to float32, as this device is a CPU"))
        weights = materialise(model, report)
        report(wire.Loading("building tokenizer", weights, weights))
        tokenizer = _tokenizer(path, config, spec.trust_remote_code, processor)
        mark, mark_id = _add_mark(processor)
        report(wire.Loading("first token", weights, weights))
        kv, vocabulary_size = _first_token(model)
    except LoadError:
        raise
    except Exception as error:  # a checkpoint can be wrong in any way
        raise LoadError(explain(path, error)) from error
    return LoadedVision(
        model=model,
        processor=processor,
        tokenizer=tokenizer,
        kind=str(config.get("model_type", "")),
        context_length=context_length(config, spec.context_length),
        weights_bytes=weights,
        vocabulary_size=vocabulary_size,
        kv=kv,
        cast_bytes=cast,
        modalities=modalities(processor),
        tower=_wrap_tower(model, features),
        mark=mark,
        mark_id=mark_id,
    )


def modalities(processor: Any) -> tuple[wire.Modality, ...]:
    """What a request may hold. A video is a row of images to a model that knows no videos."""
    hears = hasattr(processor, "feature_extractor") and accepts(processor, "audio", "audios")
    return ("text", "image", "video", "audio") if hears else ("text", "image", "video")


def takes_videos(processor: Any) -> bool:
    return getattr(processor, "video_processor", None) is not None and accepts(processor, "videos")


def accepts(processor: Any, *names: str) -> bool:
    """Whether a call of the processor has an argument of one of these names."""
    return not {*names}.isdisjoint(inspect.signature(type(processor).__call__).parameters)


def inner_tokenizer(processor: Any) -> Any:
    """The tokenizer within a processor, which may be one itself."""
    return getattr(processor, "tokenizer", processor)


def embed(model: Any, tokens: list[int], inputs: dict[str, Any]) -> dict[str, Any]:
    """The embeddings [1, tokens, hidden] of a prompt, with all that its prefill wants beside them.

    `inputs` are the processor's arrays of its media. Raises what the model raises.
    """
    ids = mx.array([tokens])
    rest = {key: value for key, value in inputs.items() if key not in _EMBED_ARGUMENTS}
    embedded = model.get_input_embeddings(
        ids, inputs.get("pixel_values"), mask=mx.ones(ids.shape, mx.int32), **rest
    )
    wanted = {key: value for key, value in embedded.to_dict().items() if value is not None}
    mx.eval([value for value in wanted.values() if isinstance(value, mx.array)])
    return {**rest, **wanted}


_EMBED_ARGUMENTS = frozenset({"input_ids", "pixel_values", "attention_mask"})


def _tokenizer(path: Any, config: dict[str, Any], trusted: bool, processor: Any) -> Any:
    """Some families keep the chat template with their processor."""
    tokenizer = build_tokenizer(path, config, trusted)
    template = getattr(processor, "chat_template", None)
    if not tokenizer.has_chat_template and template:
        tokenizer.chat_template = template
        tokenizer.has_chat_template = True
    return tokenizer


def _add_mark(processor: Any) -> tuple[str, int]:
    """Drawn anew by every process: a mark that could be guessed could be forged."""
    tokenizer = inner_tokenizer(processor)
    mark = f"<|{secrets.token_hex(16)}|>"
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False)], special_tokens=True)
    return mark, int(tokenizer.convert_tokens_to_ids(mark))


def _wrap_tower(model: Any, features: FeatureCache) -> CachedTower | None:
    for name in _TOWERS:
        tower = getattr(model, name, None)
        if callable(tower):
            wrapped = CachedTower(tower, features)
            setattr(model, name, wrapped)
            return wrapped
    return None


def _first_token(model: Any) -> tuple[KvCost, int]:
    """Runs one token of text, which also shows that the model runs at all.

    Returns what its cache costs, and how many tokens it has logits for.
    """
    embedded = embed(model, [0], {})
    layers = caches.make_prompt_cache(model.language_model)
    output = model.language_model(mx.array([[0]]), cache=layers, **embedded)
    logits = getattr(output, "logits", output)
    mx.eval(logits)
    return kv_cost(layers), int(logits.shape[-1])
