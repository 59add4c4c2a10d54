"""Loading a speech model with mlx-audio, and what the engine must know about it.

Everything here runs in the work thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_audio.tts.utils import load_model

from engines import wire
from engines.base import EngineError, LoadError, Report
from engines.speech import convolution, english, languages
from engines.speech.resample import Samples
from engines.speech.voices import chosen, default_voice, family_of, voices_of

_GROUP_BYTES = 256 * 2**20
"""Weights made real between two progress reports."""

_STREAMING_INTERVAL_S = 2.0
_INSTRUCTIONS = ("instruct", "instructions")
_KOKORO = "kokoro"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of audio and how many tokens of the text it is of."""

    samples: Samples
    tokens: int


@dataclass(frozen=True, slots=True)
class Voiced:
    """A checked request, as `LoadedSpeech.speak` takes it: the arguments beside the text."""

    arguments: dict[str, Any]
    package: str
    """What to install when a Python package turns out to be missing; "" is the package itself."""


@dataclass(frozen=True, slots=True)
class LoadedSpeech:
    """A model in memory; `model` is mlx-audio's, `rate` its samples a second."""

    model: Any
    family: str
    rate: int
    weights_bytes: int
    voices: tuple[str, ...]
    own_voice: str | None
    parameters: frozenset[str]
    """Of the model's `generate`, which differ from model to model."""

    def check(self, request: wire.Speak) -> Voiced:
        """Raises `EngineError` for what this model cannot do."""
        voice = chosen(request.voice, self.voices, self.own_voice)
        arguments: dict[str, Any] = {}
        if voice is not None:
            arguments["voice"] = voice
        if request.speed != 1.0:
            arguments[self._parameter("speed", "speed")] = request.speed
        if request.instructions:
            arguments[self._parameter("instructions", *_INSTRUCTIONS)] = request.instructions
        package = ""
        if self.family == _KOKORO:
            letter = languages.kokoro_letter(request.language, voice or "", request.text)
            arguments["lang_code"] = letter
            package = languages.kokoro_package(letter)
        elif request.language is not None:
            arguments[self._parameter("language", *languages.PARAMETERS)] = request.language
        if {"stream", "streaming_interval"} <= self.parameters:
            arguments |= {"stream": True, "streaming_interval": _STREAMING_INTERVAL_S}
        if "verbose" in self.parameters:
            arguments["verbose"] = False
        return Voiced(arguments, package)

    def speak(self, text: str, voiced: Voiced) -> Iterator[Chunk]:
        """The audio of one piece of text as the model makes it.

        Raises `EngineError` where the model fails.
        """
        try:
            for result in self.model.generate(text=text, **voiced.arguments):
                samples = mono(result.audio)
                if not np.isfinite(samples).all():
                    raise EngineError("engine_error", "the model made audio that is not finite")
                yield Chunk(samples, int(getattr(result, "token_count", 0) or 0))
        except ImportError as error:
            raise EngineError("unsupported", _missing(error, voiced.package)) from error

    def _parameter(self, field: str, *names: str) -> str:
        """Which of `names` the model's argument has. Raises `EngineError` naming the field."""
        for name in names:
            if name in self.parameters:
                return name
        raise EngineError("unsupported", f"{field}: this model ({self.family}) cannot change it")


def load(spec: wire.EngineSpec, report: Report) -> LoadedSpeech:
    """Loads the model of `spec.path`, reporting each stage before it starts.

    Raises `LoadError` with a sentence for the operator.
    """
    path = Path(spec.path)
    if not (path / "config.json").is_file():
        raise LoadError(f"{path} has no config.json, so it is not a model directory")
    convolution.install()
    english.install()
    report(wire.Loading("reading configuration"))
    try:
        model = load_model(path, lazy=True)
        _cast_half_precision(model)
        weights = _materialise(model, report)
        voices = voices_of(model, path)
        return LoadedSpeech(
            model=model,
            family=family_of(model),
            rate=int(model.sample_rate),
            weights_bytes=weights,
            voices=voices,
            own_voice=default_voice(model, voices),
            parameters=frozenset(inspect.signature(model.generate).parameters),
        )
    except ImportError as error:
        raise LoadError(_missing(error, "")) from error
    except Exception as error:  # a checkpoint can be wrong in any way
        detail = " ".join(str(error).split())[:500]
        reason = f"{type(error).__name__}: {detail}"
        raise LoadError(f"the model in {path} cannot be loaded: {reason}") from error


def mono(audio: Any) -> Samples:
    """One channel of float32 from what a model made: (samples,), (1, samples), two channels, ..."""
    samples = np.asarray(mx.array(audio).astype(mx.float32), np.float32).squeeze()
    if samples.ndim == 2:
        samples = samples.mean(axis=int(np.argmin(samples.shape)))
    return samples.reshape(-1)


def _cast_half_precision(model: Any) -> None:
    """On a CPU float16 is emulated, and very slow."""
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32, lambda dtype: bool(dtype == mx.float16))


def _materialise(model: Any, report: Report) -> int:
    """Makes all parameters real, group by group; returns their bytes."""
    arrays = [array for _, array in tree_flatten(model.parameters())]
    total = sum(int(array.nbytes) for array in arrays)
    done = told = 0
    report(wire.Loading("reading weights", done, total))
    for array in arrays:
        mx.eval(array)
        done += int(array.nbytes)
        if done - told >= _GROUP_BYTES or done == total:
            told = done
            report(wire.Loading("reading weights", done, total))
    return total


def _missing(error: ImportError, package: str) -> str:
    """What to install; the module that is missing is the innermost cause."""
    cause: BaseException = error
    while isinstance(cause.__cause__, ImportError):
        cause = cause.__cause__
    name = getattr(cause, "name", None) or str(error)
    return (
        f"this model needs the Python package {name!r}, which is not installed on the server:"
        f" pip install '{package or name}'"
    )
