"""The scripted engine as a transcription model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from engines.base import EngineError
from tests.unit.engines.scripted_bench import Bench


def media(folder: Path, data: bytes = b"RIFF and more", sha256: str | None = None) -> wire.Media:
    path = folder / "upload.media"
    path.write_bytes(data)
    known = sha256 or hashlib.sha256(data).hexdigest()
    return wire.Media("audio", str(path), "audio/wav", len(data), known)


def heard(folder: Path, deltas: Any = ("Good day, ", "you."), **fields: Any) -> list[Any]:
    bench = Bench(deltas=list(deltas))
    bench.engine.submit(wire.Transcribe(1, media(folder), **fields))
    return list(bench.run().events)


def test_a_segment_for_each_delta_and_the_text_of_all(tmp_path: Path) -> None:
    started, first, second, transcript, finished = heard(tmp_path, language="de")
    assert started == wire.Started(1, 0)
    assert first == wire.Segment(1, 0, 0.0, 1.0, "Good day, ", temperature=0.0)
    assert (second.index, second.start_s, second.end_s, second.text) == (1, 1.0, 2.0, "you.")
    assert transcript == wire.Transcript(1, "Good day, you.", "de", 2.0)
    assert isinstance(finished, wire.Finished)
    assert finished.usage.completion_tokens == 3


def test_words_and_translations(tmp_path: Path) -> None:
    _, first, second, transcript, _ = heard(tmp_path, words=True, translate=True, language="de")
    assert first.words == (wire.Word(" Good", 0.0, 0.5), wire.Word(" day,", 0.5, 1.0))
    assert second.words == (wire.Word(" you.", 1.0, 2.0),)
    assert transcript.language == "en"


def test_its_prompt_can_be_a_script(tmp_path: Path) -> None:
    *_, segment, failed = heard(tmp_path, prompt=json.dumps({"script": ["Oh", {"raise": "dear"}]}))
    assert segment.text == "Oh"
    assert failed == wire.Failed(1, "engine_error", "dear")


def test_it_looks_at_its_file(tmp_path: Path) -> None:
    bench = Bench()
    with pytest.raises(EngineError, match="not the one that was uploaded"):
        bench.engine.submit(wire.Transcribe(1, media(tmp_path, sha256="00")))
    gone = media(tmp_path)
    Path(gone.path).unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        bench.engine.submit(wire.Transcribe(1, gone))
    assert not bench.engine.busy


def test_a_cancel_ends_it(tmp_path: Path) -> None:
    bench = Bench(deltas=100)
    bench.engine.submit(wire.Transcribe(1, media(tmp_path)))
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.events[-1] == wire.Failed(1, "cancelled", "the call was cancelled")
    assert not bench.engine.busy
