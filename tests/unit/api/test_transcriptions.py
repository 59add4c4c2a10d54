"""Transcriptions: a form to the neutral request, and segments to every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from gateway.api.dialect import Defaults
from gateway.api.transcriptions import ERRORS, DecodedTranscription, transcription, translation
from gateway.api.transcriptions_encode import TranscriptEncoder, TranscriptEvents
from gateway.api.uploads import Form
from gateway.errors import InvalidRequest, Unavailable, Unsupported
from gateway.residency import Phase
from gateway.security.media import MediaFile
from gateway.supervisor.call import CallItem, Granted

FILE = MediaFile(Path("/run/media/x.media"), "audio/wav", 12, "ab")
AUDIO = wire.Media("audio", "/run/media/x.media", "audio/wav", 12, "ab")


def decoded(**fields: Any) -> DecodedTranscription:
    given = {"model": "ears", **fields}
    lists = {name: value if isinstance(value, list) else [value] for name, value in given.items()}
    return transcription(Form(lists, FILE))


def made(defaults: Defaults | None = None, **fields: Any) -> wire.Transcribe:
    request = decoded(**fields).make(7, defaults or Defaults())
    assert isinstance(request, wire.Transcribe)
    return request


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"language": "de", "prompt": "names"}, {"language": "de", "prompt": "names"}),
        ({"language": "", "prompt": "", "temperature": ""}, {}),
        ({"temperature": "0.4"}, {"temperature": 0.4}),
        ({"temperature": "1"}, {"temperature": 1.0}),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]},
            {"words": True},
        ),
        ({"response_format": "verbose_json", "timestamp_granularities": "word"}, {"words": True}),
        ({"response_format": "verbose_json", "timestamp_granularities[]": ["segment"]}, {}),
        ({"chunking_strategy": "auto", "include[]": [""], "unknown": "x", "stream": "false"}, {}),
    ],
)
def test_what_is_asked_of_the_engine(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(**fields) == wire.Transcribe(7, AUDIO, **expected)


def test_a_translation_says_so() -> None:
    request = translation(Form({"model": ["ears"], "language": ["fr"]}, FILE))
    assert request.make(7, Defaults()) == wire.Transcribe(7, AUDIO, "fr", translate=True)


def test_a_model_has_a_default_temperature() -> None:
    assert made(Defaults(temperature=0.2)).temperature == 0.2
    assert made(Defaults(temperature=1.8)).temperature == 1.0
    assert made(Defaults(temperature=0.2), temperature="0").temperature == 0.0


def test_what_the_exchange_has_to_know() -> None:
    asked = decoded(stream="true", timeout="5", keep_alive="-1", priority="low")
    assert (asked.model, asked.stream, asked.timeout_s, asked.uploads) == ("ears", True, 5, (FILE,))
    assert asked.wish.keep_alive_s == -1
    assert decoded(response_format="vtt").answer_type == b"text/vtt; charset=utf-8"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": ["a", "b"]}, "model"),
        ({"temperature": "1.01"}, "temperature"),
        ({"temperature": "-0.1"}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"language": "e"}, "language"),
        ({"language": "x" * 41}, "language"),
        ({"response_format": "xml"}, "response_format"),
        ({"stream": "perhaps"}, "stream"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities"),
        (
            {"response_format": "verbose_json", "timestamp_granularities[]": ["letter"]},
            "timestamp_granularities[0]",
        ),
        ({"keep_alive": "-0.5"}, "keep_alive"),
    ],
)
def test_bad_input_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        decoded(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"chunking_strategy": '{"type": "server_vad"}'}, "chunking_strategy"),
        ({"include[]": ["logprobs"]}, "include"),
        ({"keywords[]": ["Kraków"]}, "keywords"),
        ({"languages[]": ["en"]}, "languages"),
        ({"known_speaker_names[]": ["Ann"]}, "known_speaker_names"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"stream": "1", "response_format": "verbose_json"}, "stream"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as error:
        decoded(**fields)
    assert error.value.param == param


# --- encoding -------------------------------------------------------------------------------------

WORDS = (wire.Word(" Good", 0.0, 0.5, 0.9), wire.Word(" day.", 0.5, 1.0))
SEGMENTS = [
    wire.Segment(7, 0, 0.0, 1.0, " Good day.", WORDS, (50364, 2205), 0.2, -0.25, 1.5, 0.01),
    wire.Segment(7, 1, 1.5, 2.7, " How are you?"),
]
TRANSCRIPT = wire.Transcript(7, "Good day. How are you?", "en", 2.72)
ITEMS: list[CallItem] = [
    Phase.LOADING,
    Granted(),
    wire.Started(7, 0),
    *SEGMENTS,
    TRANSCRIPT,
    wire.Finished(7, wire.Usage(0, 9), wire.Timings()),
]


def body(translate: bool = False, **fields: Any) -> bytes:
    decode = translation if translate else transcription
    lists = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    encoder = TranscriptEncoder(decode(Form({"model": ["ears"], **lists}, FILE)))
    for item in ITEMS:
        encoder.add([item])
    return encoder.body()


USAGE = {"type": "duration", "seconds": 3}


def test_json_and_text() -> None:
    assert json.loads(body()) == {"text": "Good day. How are you?", "usage": USAGE}
    assert body(response_format="text") == b"Good day. How are you?\n"


def test_subtitles() -> None:
    assert body(response_format="vtt").startswith(b"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nGood")
    assert body(response_format="srt").endswith(
        b"\n2\n00:00:01,500 --> 00:00:02,700\nHow are you?\n\n"
    )


def test_verbose_json() -> None:
    verbose = json.loads(body(response_format="verbose_json"))
    first, second = verbose.pop("segments")
    assert verbose == {
        "task": "transcribe",
        "language": "english",
        "duration": 2.72,
        "text": "Good day. How are you?",
        "usage": USAGE,
    }
    assert first == {
        "id": 0,
        "seek": 0,
        "start": 0.0,
        "end": 1.0,
        "text": " Good day.",
        "tokens": [50364, 2205],
        "temperature": 0.2,
        "avg_logprob": -0.25,
        "compression_ratio": 1.5,
        "no_speech_prob": 0.01,
    }
    assert (second["id"], second["seek"], second["avg_logprob"]) == (1, 150, 0.0)


def test_granularities() -> None:
    asked: dict[str, Any] = {
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word"],
    }
    words = json.loads(body(**asked))
    assert "segments" not in words
    assert words["words"][0] == {"word": "Good", "start": 0.0, "end": 0.5}
    both = json.loads(body(**{**asked, "timestamp_granularities[]": ["segment", "word"]}))
    assert len(both["segments"]) == len(both["words"]) == 2
    assert json.loads(body(True, response_format="verbose_json"))["task"] == "translate"


def test_events() -> None:
    encoder = TranscriptEvents(decoded(stream="true"))
    frames = [frame for item in ITEMS for frame in encoder.frames([item])]
    events = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert all(frame.endswith(b"\n\n") for frame in frames)
    assert events == [
        {"type": "transcript.text.delta", "delta": "Good day."},
        {"type": "transcript.text.delta", "delta": " How are you?"},
        {"type": "transcript.text.done", "text": "Good day. How are you?"},
    ]


def test_an_error_names_the_field_that_its_sentence_begins_with() -> None:
    told = json.loads(ERRORS.body(InvalidRequest("file: it is damaged"), "r"))["error"]
    assert (told["param"], told["code"]) == ("file", "invalid_request")
    other = json.loads(ERRORS.body(Unavailable("file: no room"), "r"))["error"]
    assert other["param"] is None
    failed = TranscriptEvents(decoded()).error(InvalidRequest("language: unknown"))
    assert json.loads(failed.removeprefix(b"data: "))["error"]["param"] == "language"
