"""What one token of a choice tells, and that a fault in telling it is one call's own."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engines import wire
from engines.answer import Answer
from engines.base import Emitted, EngineError
from engines.text.calls import Call, Row
from engines.text.logprobs import Drawn


class Letters:
    """A detokenizer that spells tokens as letters, and breaks on 0."""

    def add(self, token: int) -> str:
        if token == 0:
            raise ZeroDivisionError("no letter")
        return chr(96 + token)

    def finish(self) -> str:
        return ""


def nothing_drawn() -> Drawn | None:
    return None


def row() -> Row:
    call = Call(7, [1], 10, None, chr, lambda token: None, submitted_at=0.0, unfinished=1)
    made = Row(call, cast(Any, None), [], cast(Any, Letters()), Answer(7, 0, None))
    call.rows.append(made)
    return made


def test_a_token_shows_its_text_and_the_last_one_the_end() -> None:
    told: list[Emitted] = []
    choice = row()
    assert choice.tell(1, nothing_drawn, None, told.append) is False
    assert choice.call.first_token_at is not None
    assert choice.tell(2, nothing_drawn, "length", told.append) is True
    assert told == [
        wire.TextDelta(7, 0, "a"),
        wire.TextDelta(7, 0, "b"),
        wire.ChoiceFinished(7, 0, "length"),
    ]
    assert (choice.generated, choice.call.unfinished) == (2, 0)


def test_a_stop_token_has_no_text() -> None:
    told: list[Emitted] = []
    assert row().tell(3, nothing_drawn, "stop", told.append) is True
    assert told == [wire.ChoiceFinished(7, 0, "stop")]


def test_a_fault_is_the_calls_own(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Drawn | None:
        raise IndexError("nothing was drawn")

    for token, drawn in ((0, nothing_drawn), (1, broken)):
        with pytest.raises(EngineError, match="cannot be turned into text") as error:
            row().tell(token, drawn, None, lambda event: None)
        assert error.value.code == "engine_error"
    assert "no letter" in caplog.text
