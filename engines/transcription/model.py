"""Loading a model of speech to text from a local directory with mlx-audio."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_audio.stt.utils import load as load_stt
from mlx_audio.utils import load_weights

from engines import wire
from engines.base import LoadError, Report
from engines.transcription.audio import RATE

_WHISPER = "mlx_audio.stt.models.whisper.whisper"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory; it takes audio at `rate` Hz."""

    model: Any
    whisper: bool
    rate: int
    context_length: int
    weights_bytes: int


def load(spec: wire.EngineSpec, report: Report) -> LoadedModel:
    """Loads the model of `spec.path`, reporting each stage before it starts.

    Raises `LoadError` with a sentence for the operator.
    """
    path = Path(spec.path)
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} has no config.json, so it is not a model directory")
    try:
        report(wire.Loading("reading configuration"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a processor that is missing is an error below
            model = load_stt(str(path), lazy=True)
        whisper = type(model).__module__ == _WHISPER
        if whisper and getattr(model, "_processor", None) is None:
            raise LoadError(
                f"{path} lacks the tokenizer of a Whisper model: it needs tokenizer.json, "
                "tokenizer_config.json and preprocessor_config.json"
            )
        if mx.default_device() == mx.cpu:
            report(wire.Loading("casting float16 weights to float32, as this device is a CPU"))
            _widen(model, path, whisper)
        weights = _materialise(model, report)
    except LoadError:
        raise
    except Exception as error:  # a checkpoint can be wrong in any way
        detail = " ".join(str(error).split())[:500]
        raise LoadError(
            f"the model in {path} cannot be loaded: {type(error).__name__}: {detail}"
        ) from error
    context = model.dims.n_text_ctx if whisper else 0
    return LoadedModel(model, whisper, _rate(model), spec.context_length or context, weights)


def _widen(model: Any, path: Path, whisper: bool) -> None:
    """float16, which a CPU has to emulate, becomes float32.

    mlx-audio's Whisper casts everything to float16 while it loads, so its weights are read again.
    """
    if whisper:
        model.dtype = mx.float32
        model.encoder._positional_embedding = model.encoder._positional_embedding.astype(mx.float32)
        model.decoder._mask = model.decoder._mask.astype(mx.float32)
        model.load_weights(list(model.sanitize(load_weights(path)).items()), strict=False)
    else:
        model.set_dtype(mx.float32, lambda dtype: bool(dtype == mx.float16))


def _materialise(model: Any, report: Report) -> int:
    """Makes all parameters real; returns their bytes."""
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total = sum(int(array.nbytes) for array in arrays)
    report(wire.Loading("reading weights", 0, total))
    mx.eval(arrays)
    report(wire.Loading("reading weights", total, total))
    return total


def _rate(model: Any) -> int:
    for owner in (model, getattr(model, "preprocessor_config", None)):
        rate = getattr(owner, "sample_rate", None)
        if isinstance(rate, int) and 8_000 <= rate <= 48_000:
            return rate
    return RATE
