"""Which voices a model has, and which of them a request gets.

mlx-audio has no common way to ask. A voice that is not listed never reaches a model: several take
a voice for a path or an address.
"""

from __future__ import annotations

import inspect
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engines.base import EngineError

DEFAULT = "default"
"""Always understood, because clients cannot leave the field out: the model's own voice."""

_OWN_DEFAULTS = {"kokoro": "af_heart", "kitten_tts": "expr-voice-5-m"}
_SHOWN = 8


def voices_of(model: Any, folder: Path) -> tuple[str, ...]:
    """The voices of a loaded model, from what it says and from its folder; sorted files first."""
    names = [*_voice_files(folder), *_said_by(model)]
    return tuple(dict.fromkeys(names))


def family_of(model: Any) -> str:
    """The name of its package in mlx-audio."""
    return type(model).__module__.removeprefix("mlx_audio.tts.models.").partition(".")[0]


def default_voice(model: Any, voices: Sequence[str]) -> str | None:
    """The model's own where it is there, else the first; None for a model without voices."""
    if not voices:
        return None
    parameter = inspect.signature(model.generate).parameters.get("voice")
    own = _OWN_DEFAULTS.get(family_of(model), parameter.default if parameter else None)
    return own if own in voices else voices[0]


def chosen(asked: str | None, voices: Sequence[str], own: str | None) -> str | None:
    """What the model is told. Several, joined by commas, are mixed by models that can.

    Raises `EngineError` for a voice that is not there, naming some that are.
    """
    if asked is None or asked == DEFAULT:
        return own
    if not voices:
        raise EngineError(
            "invalid_request",
            f"voice: there is no {asked!r}; this model has no named voices,"
            f' leave the field out or say "{DEFAULT}"',
        )
    for name in asked.split(","):
        if name not in voices:
            more = ", ..." if len(voices) > _SHOWN else ""
            raise EngineError(
                "invalid_request",
                f"voice: there is no {name[:100]!r}; this model has"
                f" {', '.join(voices[:_SHOWN])}{more}",
            )
    return asked


def _voice_files(folder: Path) -> Iterable[str]:
    """`voices/NAME.safetensors`, and the arrays in `voices.npz`."""
    yield from sorted(path.stem for path in folder.glob("voices/*.safetensors"))
    archive = folder / "voices.npz"
    if archive.is_file():
        with zipfile.ZipFile(archive) as packed:
            yield from sorted(name.removesuffix(".npy") for name in packed.namelist())


def _said_by(model: Any) -> Iterable[str]:
    speakers = getattr(model, "get_supported_speakers", None)
    if speakers is not None:
        yield from map(str, speakers() or ())
    for name in (type(model).__module__, type(model).__module__.rpartition(".")[0] + ".utils"):
        yield from getattr(sys.modules.get(name), "PREDEFINED_VOICES", ())
