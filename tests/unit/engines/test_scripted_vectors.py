"""What the scripted engine makes of texts, and that its options work on these calls too."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from engines import wire
from engines.base import EngineError
from engines.scripted_vectors import score_of, vector_of
from tests.unit.engines.scripted_bench import Bench

SIZE = 16


class Vectors(Bench):
    """A scripted engine of small vectors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"vector_dim": SIZE, **options})

    def embed(self, *inputs: str | list[int], call_id: int = 1, **fields: Any) -> None:
        self.engine.submit(wire.Embed(call_id, list(inputs), **fields))

    def vectors(self) -> list[list[float]]:
        data = b"".join(event.data for event in self.events if isinstance(event, wire.Bytes))
        values = array("f", data).tolist()
        return [values[at : at + SIZE] for at in range(0, len(values), SIZE)]


def near(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_vectors_have_length_1_and_say_what_texts_share() -> None:
    cat, cats, moon = (vector_of(text, 256) for text in ("a black cat", "A cat", "the moon"))
    assert near(cat, cat) == pytest.approx(1)
    assert near(cat, cats) > 0.5
    assert abs(near(cat, moon)) < 0.3
    assert vector_of("A black CAT", 256) == cat


def test_scores_are_shares_of_the_query() -> None:
    assert score_of("red fish", "the Fish was RED") == 1
    assert score_of("red fish", "a red bird") == 0.5
    assert score_of("red fish", "") == 0
    assert score_of(" ", "x") == 0


def test_an_embedding_call_has_its_events_in_order() -> None:
    bench = Vectors()
    bench.embed("two words", [5, 6, 7])
    bench.run()
    assert bench.names() == ["Started", "Bytes", "Finished"]
    assert bench.events[0] == wire.Started(1, 5)
    assert bench.usage() == wire.Usage(prompt_tokens=5, completion_tokens=0)
    assert bench.vectors()[0] == pytest.approx(vector_of("two words", SIZE), abs=1e-7)
    assert bench.vectors()[1] == pytest.approx(vector_of("5 6 7", SIZE), abs=1e-7)


def test_tokens_that_were_met_are_their_words() -> None:
    bench = Vectors()
    answer = bench.engine.answer(wire.Tokenize(1, "", "two words"))
    assert isinstance(answer, wire.Tokenized)
    bench.embed("two words", answer.token_ids)
    bench.run()
    assert bench.vectors()[0] == bench.vectors()[1]


def test_a_rerank_call_has_its_events_in_order() -> None:
    bench = Vectors()
    bench.engine.submit(wire.Rerank(1, "red", ["a red one", "a blue one"]))
    bench.run()
    assert bench.names() == ["Started", "Scores", "Finished"]
    assert bench.events[1] == wire.Scores(1, [1.0, 0.0])
    assert bench.usage() == wire.Usage(prompt_tokens=8, completion_tokens=0)


def test_vectors_come_in_parts() -> None:
    bench = Vectors(vector_dim=8192)
    bench.embed(*[f"word{number}" for number in range(40)])
    bench.run()
    parts = [event for event in bench.events if isinstance(event, wire.Bytes)]
    assert [len(part.data) for part in parts] == [2**20, 40 * 8192 * 4 - 2**20]
    assert [part.seq for part in parts] == [0, 1]


def test_texts_take_their_time() -> None:
    bench = Vectors(tokens_per_s=10, prefill_s=1)
    bench.embed("one two three", "four")
    bench.run()
    # Nobody waits behind the last one, as after the last word of an answer.
    assert bench.machine.time == pytest.approx(100 + 1 + 0.3)


def test_the_first_text_can_be_a_script() -> None:
    bench = Vectors()
    bench.embed(json.dumps({"script": [{"sleep": 2}, {"raise": "no numbers"}]}))
    bench.run()
    assert bench.machine.time == pytest.approx(102)
    assert bench.events[-1] == wire.Failed(1, "engine_error", "no numbers")


def test_faults_strike() -> None:
    bench = Vectors(exit_after=1)
    bench.embed("a")
    bench.run()
    bench.embed("b", call_id=2)
    bench.run()
    assert bench.machine.done == ["exit 1"]


def test_a_call_can_be_cancelled() -> None:
    bench = Vectors(tokens_per_s=1)
    bench.embed("one two three", "four")
    bench.engine.step()
    bench.engine.cancel(1)
    assert bench.names() == ["Started", "Failed"]
    assert not bench.engine.busy


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"dimensions": 17}, "unsupported", "dimensions is 17, but a vector of this model has 16"),
        ({"prompt": "sts"}, "invalid_request", "no prompt 'sts'"),
        ({}, "context_length_exceeded", r"input\[1\] has 4 tokens, and this model takes 3"),
    ],
)
def test_what_a_model_could_not_do_is_refused(
    fields: dict[str, Any], code: str, words: str
) -> None:
    bench = Vectors(context_length=3)
    with pytest.raises(EngineError, match=words) as caught:
        bench.embed("a", "one two three four", **fields)
    assert caught.value.code == code
    assert not bench.engine.busy
