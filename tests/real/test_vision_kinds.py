"""Kinds of vision models whose rows may share a batch: each answers in one as it does alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines import wire
from engines.vision.model import BATCHED_KINDS
from tests.fixtures.make_vision import KINDS, make_vision
from tests.real.seeing import COLOURS, SIZES, Driven, picture


def test_every_kind_that_is_batched_is_tested() -> None:
    assert set(KINDS) | {"qwen2_vl"} == BATCHED_KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_answers_in_a_batch_are_those_alone(kind: str, tmp_path: Path) -> None:
    asked = [[picture(tmp_path, colour, size)] for colour, size in zip(COLOURS, SIZES, strict=True)]
    asked += [[picture(tmp_path, "red"), picture(tmp_path, "blue")], []]
    driven = Driven(path=str(make_vision(kind, tmp_path)))
    try:
        alone = [driven.ask(*media) for media in asked]
        assert len(set(alone)) == len(asked)
        assert all(alone)
        for apart in (0, 1, 3):
            driven.events.clear()
            for call_id, media in enumerate(asked):
                driven.submit(call_id, media)
                for _ in range(apart):
                    driven.engine.step()
            driven.run()
            assert [driven.text(call_id) for call_id in range(len(asked))] == alone
            ends = [driven.end(call_id) for call_id in range(len(asked))]
            assert all(isinstance(end, wire.Finished) for end in ends), ends
        assert driven.engine.features().hits > 0
    finally:
        driven.engine.close()
