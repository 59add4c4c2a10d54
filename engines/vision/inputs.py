"""A request with media to what its model takes: prompt tokens, and arrays of its media.

A processor puts a run of tokens for every image into the text that it is given and tokenizes the
whole, so control tokens that a client spells out cannot be kept apart by cutting the text. In their
places stands the mark, a token that only the processor's tokenizer has and nobody can spell; when
the processor is done, the tokens of the spelling as plain text take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_vlm.prompt_utils import MODEL_CONFIG, MessageFormat, get_message_json
from mlx_vlm.utils import prepare_inputs

from engines import wire
from engines.answer import tools_offered
from engines.base import EngineError
from engines.text.prompt import PromptEncoder, Rendered
from engines.text.vocabulary import template_kwargs
from engines.vision.model import LoadedVision, takes_videos
from engines.vision.pixels import Clip, open_audio, open_image, open_video

Chat = wire.Generate | wire.CountTokens

_SPELLED = frozenset(
    {
        MessageFormat.IMAGE_TOKEN,
        MessageFormat.IMAGE_TOKEN_NEWLINE,
        MessageFormat.IMAGE_TOKEN_PIPE,
        MessageFormat.IMAGE_TOKEN_WRAPPED,
        MessageFormat.IMAGE_PATCH_TOKEN,
        MessageFormat.NUMBERED_IMAGE_TOKENS,
        MessageFormat.SINGLE_IMAGE_TOKEN,
        MessageFormat.START_IMAGE_TOKEN,
    }
)
"""Formats of kinds whose templates take texts alone, with the images spelled out in them."""

_SAMPLING_RATE = 16_000
"""Of a processor that names none, as mlx-vlm assumes too."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt: `tokens`, the processor's arrays, and the names of its images for their features.

    `images` is empty where features cannot be told by them, as with a video among them.
    """

    tokens: list[int]
    arrays: dict[str, Any] = field(default_factory=dict)
    images: tuple[str, ...] = ()


@dataclass(slots=True)
class _Opened:
    """The media of one request in the order of its messages, and how its messages name them."""

    images: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)
    sounds: list[Any] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)


class Inputs:
    """Prepares requests for one model."""

    def __init__(self, loaded: LoadedVision) -> None:
        self._loaded = loaded
        self._encoder = PromptEncoder(loaded.tokenizer)
        self._videos = takes_videos(loaded.processor)
        self._shape = _shaper(loaded.kind)

    def prepare(self, request: Chat) -> Prepared:
        """Decodes the media of a request's messages. Raises `EngineError`."""
        opened = self._open(request)
        tools = request.tools if tools_offered(request) else []
        rendered = self._encoder.render(
            opened.messages, template_kwargs(request), tools, self._shape
        )
        text, spellings = self._marked(rendered)
        arrays = self._process(opened, text)
        tokens, arrays = self._unmarked(arrays, spellings)
        named = () if opened.clips else tuple(opened.names)
        return Prepared(tokens, arrays, named)

    # --- media ----------------------------------------------------------------------------------

    def _open(self, request: Chat) -> _Opened:
        opened = _Opened()
        for message in request.messages:
            content = message.get("content")
            if isinstance(content, list):
                parts = [
                    shown for part in content for shown in self._open_part(part, request, opened)
                ]
                message = {**message, "content": parts}  # noqa: PLW2901
            opened.messages.append(message)
        return opened

    def _open_part(
        self, part: Mapping[str, Any], request: Chat, opened: _Opened
    ) -> list[dict[str, Any]]:
        if part["type"] == "text":
            # Templates look for the text under either name.
            return [{"type": "text", "text": part["text"], "content": part["text"]}]
        media: wire.Media = request.media[part["media"]]
        if media.kind not in self._loaded.modalities:
            raise EngineError("unsupported", f"this model takes no {media.kind}")
        match media.kind:
            case "image":
                others = sum(image.width * image.height for image in opened.images)
                opened.images.append(open_image(media, others))
                opened.names.append(media.sha256)
            case "video":
                return self._open_clip(open_video(media, request.video), media, opened)
            case "audio":
                from mlx_audio.audio_io import read

                opened.sounds.append(open_audio(media, self._rate(), read))
        return [{"type": media.kind}]

    def _open_clip(self, clip: Clip, media: wire.Media, opened: _Opened) -> list[dict[str, Any]]:
        if self._videos:
            opened.clips.append(clip)
            return [{"type": "video"}]
        images = clip.images()
        opened.images.extend(images)
        # The more frames are taken, the smaller they are.
        opened.names.extend(
            f"{media.sha256}#{index} {image.width}x{image.height}"
            for index, image in zip(clip.indices, images, strict=True)
        )
        return [{"type": "image"}] * len(clip.indices)

    def _rate(self) -> int:
        extractor = getattr(self._loaded.processor, "feature_extractor", None)
        return int(getattr(extractor, "sampling_rate", _SAMPLING_RATE))

    def _process(self, opened: _Opened, text: str) -> dict[str, Any]:
        """The processor's arrays. Raises `EngineError` for what it does not take."""
        if not (opened.images or opened.clips or opened.sounds):
            raise EngineError("invalid_request", "the messages name no media")
        config = self._loaded.model.config
        videos: dict[str, Any] = {}
        if opened.clips:
            videos["videos"] = [clip.frames for clip in opened.clips]
            videos["video_metadata"] = [_metadata(clip) for clip in opened.clips]
        try:
            return dict(
                prepare_inputs(
                    self._loaded.processor,
                    images=opened.images or None,
                    audio=opened.sounds or None,
                    prompts=[text],
                    image_token_index=getattr(config, "image_token_index", None),
                    **videos,
                )
            )
        except Exception as error:  # a processor is a program of its family
            detail = " ".join(str(error).split())[:300] or type(error).__name__
            raise EngineError(
                "invalid_request", f"the model's processor does not take these media: {detail}"
            ) from error

    # --- control tokens -------------------------------------------------------------------------

    def _marked(self, rendered: Rendered) -> tuple[str, list[str]]:
        """The text with a mark in place of each placeholder, and what they stand for in order."""
        pieces = rendered.pieces()
        spellings = [rendered.hidden[piece] for piece in pieces if piece in rendered.hidden]
        marked = (self._loaded.mark if piece in rendered.hidden else piece for piece in pieces)
        return "".join(marked), spellings

    def _unmarked(
        self, arrays: dict[str, Any], spellings: Sequence[str]
    ) -> tuple[list[int], dict[str, Any]]:
        """The prompt's tokens with the spellings in place of the marks, and arrays to match."""
        ids = _row(arrays.pop("input_ids"))
        arrays.pop("attention_mask", None)
        if ids.count(self._loaded.mark_id) != len(spellings):
            raise EngineError(
                "invalid_request",
                "the messages spell out control tokens of this model that it cannot show as text",
            )
        if not spellings:
            return ids, arrays
        left = iter(spellings)
        tokens: list[int] = []
        source: list[int] = []
        for at, token in enumerate(ids):
            here = self._encoder.as_text(next(left)) if token == self._loaded.mark_id else [token]
            tokens += here
            source += [at] * len(here)
        return tokens, {
            key: value[:, mx.array(source)] if _goes_along(key, value, len(ids)) else value
            for key, value in arrays.items()
        }


def _row(ids: Any) -> list[int]:
    rows: Any = mx.array(ids).tolist()
    row: list[int] = rows[0]
    return row


def _goes_along(key: str, value: Any, length: int) -> bool:
    """Whether an array has one entry for every token of the prompt."""
    return (
        isinstance(value, mx.array)
        and value.ndim == 2
        and value.shape == (1, length)
        and not key.startswith(("pixel_", "image_", "video_"))
    )


def _metadata(clip: Clip) -> dict[str, Any]:
    return {"total_num_frames": clip.total, "fps": clip.rate, "frames_indices": clip.indices}


def _shaper(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """What has to be done to a message with parts before the template gets it; None is nothing."""
    if MODEL_CONFIG.get(kind) not in _SPELLED:
        return None

    def spelled(message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if not isinstance(content, list):
            return message
        count = sum(part["type"] == "image" for part in content)
        shown = get_message_json(kind, content, role="user", num_images=count)
        return {**message, "content": shown["content"] if isinstance(shown, dict) else shown}

    return spelled
