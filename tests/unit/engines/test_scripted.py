"""What the scripted engine says, and when."""

from __future__ import annotations

from typing import Any

import pytest

from engines import wire
from engines.base import EngineError
from engines.script import GIB
from engines.words import words
from tests.unit.engines.scripted_bench import Bench

# --- replies --------------------------------------------------------------------------------------


def test_a_call_has_its_events_in_order() -> None:
    bench = Bench(deltas="one two")
    bench.submit("three words here")
    bench.run()
    assert bench.names() == ["Started", "TextDelta", "TextDelta", "ChoiceFinished", "Finished"]
    assert bench.events[0] == wire.Started(1, 3)
    assert bench.usage() == wire.Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ("one two  three", ["one ", "two  ", "three"]),
        (["as it", " is"], ["as it", " is"]),
        (3, ["word1 ", "word2 ", "word3 "]),
        ("", []),
        (0, []),
        ([""], []),
    ],
)
def test_the_default_reply(deltas: object, expected: list[str]) -> None:
    bench = Bench(deltas=deltas)
    bench.submit()
    assert bench.run().texts() == expected
    assert bench.ends() == [("stop", None)]


@pytest.mark.parametrize("text", ["a b", " lead", "trail ", "\n\n", "tabs\tand\nlines ", "x"])
def test_words_join_to_their_text(text: str) -> None:
    assert "".join(words(text)) == text


@pytest.mark.parametrize(
    "content",
    [
        "{not json",
        '{"script": "no list"}',
        '["script"]',
        '{"other": []}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"lone": "\ud800"}',
        None,
        12,
        [{"type": "text", "text": "hi"}],
    ],
)
def test_what_is_no_script_gets_the_default_reply(content: object) -> None:
    bench = Bench(deltas="default")
    bench.submit(content)
    assert bench.run().texts() == ["default"]


def test_the_script_of_the_last_user_message_counts() -> None:
    bench = Bench()
    messages = [
        {"role": "user", "content": '{"script": ["old"]}'},
        {"role": "user", "content": ' {"script": ["new"]}'},
        {"role": "assistant", "content": '{"script": ["other"]}'},
    ]
    bench.engine.submit(wire.Generate(1, messages))
    assert bench.run().texts() == ["new"]


@pytest.mark.parametrize(
    ("steps", "fields", "texts", "end", "tokens"),
    [
        (["a b", "c"], {}, ["a b", "c"], ("stop", None), 3),
        ([], {}, [], ("stop", None), 0),
        ([" there"], {}, [" there"], ("stop", None), 1),
        (["a", "b"], {"finish": "length"}, ["a", "b"], ("length", None), 2),
        (["a b c", "d"], {"max_tokens": 2}, ["a b "], ("length", None), 2),
        (["a ", "b ", "c"], {"max_tokens": 2}, ["a ", "b "], ("length", None), 2),
        (["a", "b"], {"max_tokens": 2}, ["a", "b"], ("length", None), 2),
        (["a", "b"], {"max_tokens": 3}, ["a", "b"], ("stop", None), 2),
        ([{"hex": "f09f"}, {"hex": "9880"}], {}, ["\U0001f600"], ("stop", None), 2),
        ([{"hex": "c3"}, "x"], {}, ["\ufffdx"], ("stop", None), 2),
        (["x", {"hex": "e282"}], {}, ["x", "\ufffd"], ("stop", None), 2),
        ([{"hex": "e282"}, {"hex": "ac"}], {"max_tokens": 1}, ["\ufffd"], ("length", None), 1),
        (["a", {"token": "<|end|>"}, "b"], {}, ["a", "b"], ("stop", None), 3),
        (["a", {"sleep": 1}], {}, ["a"], ("stop", None), 1),
        (["one ST", "OP two"], {"stop": ("STOP",)}, ["one "], ("stop", "STOP"), 4),
        (["one ST", "AY"], {"stop": ("STOP",)}, ["one ", "STAY"], ("stop", None), 3),
        (["one ST"], {"stop": ("STOP",)}, ["one ", "ST"], ("stop", None), 2),
        (["a b"], {"stop": ("b",), "max_tokens": 2}, ["a "], ("stop", "b"), 2),
    ],
)
def test_scripts(
    steps: list[object],
    fields: dict[str, Any],
    texts: list[str],
    end: tuple[str, str | None],
    tokens: int,
) -> None:
    bench = Bench()
    bench.script(*steps, **fields)
    bench.run()
    assert bench.texts() == texts
    assert bench.ends() == [end]
    assert bench.usage().completion_tokens == tokens


@pytest.mark.parametrize(
    "step",
    [
        1,
        None,
        {},
        {"raise": 1},
        {"exit": False},
        {"exit": 256},
        {"sleep": -1},
        {"sleep": True},
        {"sleep": 1e9},
        {"hex": "zz"},
        {"hex": "e"},
        {"token": 1},
        {"unknown": 1},
        {"raise": "x", "exit": True},
    ],
)
def test_a_malformed_step_is_refused_by_its_place(step: object) -> None:
    bench = Bench()
    with pytest.raises(EngineError, match=r"script\[1\] must be") as caught:
        bench.script("fine", step)
    assert caught.value.code == "invalid_request"
    assert not bench.engine.busy


def test_an_unknown_finish_is_refused() -> None:
    with pytest.raises(EngineError, match="finish"):
        Bench().script("a", finish="tool_calls")


def test_the_context_bounds_prompt_and_reply() -> None:
    bench = Bench(context_length=5, deltas=100)
    with pytest.raises(EngineError, match="5 tokens") as caught:
        bench.submit("a b c d e")
    assert caught.value.code == "context_length_exceeded"
    bench.submit("a b c")
    assert bench.run().texts() == ["word1 ", "word2 "]
    assert bench.ends() == [("length", None)]


def test_calls_run_side_by_side_and_cancel_ends_one() -> None:
    bench = Bench(deltas=3)
    bench.submit(call_id=1)
    bench.submit(call_id=2)
    bench.engine.step()
    assert bench.engine.running == 2
    bench.engine.cancel(1)
    bench.engine.cancel(99)
    bench.run()
    assert bench.texts(1) == ["word1 "]
    assert bench.texts(2) == ["word1 ", "word2 ", "word3 "]
    (failed,) = [event for event in bench.events if isinstance(event, wire.Failed)]
    assert (failed.id, failed.code) == (1, "cancelled")


def test_raise_ends_its_call_only() -> None:
    bench = Bench(deltas=2)
    bench.script("a", {"raise": "boom"}, "never", call_id=1)
    bench.submit(call_id=2)
    bench.run()
    assert wire.Failed(1, "engine_error", "boom") in bench.events
    assert bench.texts(1) == ["a"]
    assert len(bench.texts(2)) == 2


# --- time -----------------------------------------------------------------------------------------


def test_without_a_rate_nothing_is_waited_for() -> None:
    bench = Bench(deltas=50)
    bench.submit()
    assert bench.run().machine.waits == []


def test_the_rate_counts_tokens() -> None:
    bench = Bench(tokens_per_s=10)
    bench.script("a b c d", "e", "f")
    bench.run()
    assert bench.machine.time == pytest.approx(100.5)
    assert max(bench.machine.waits) <= 0.05


def test_a_pause_is_not_made_up_for_in_a_burst() -> None:
    bench = Bench(deltas=4, tokens_per_s=10)
    bench.submit()
    bench.engine.step()
    bench.machine.time += 60
    resumed = bench.machine.time
    bench.run()
    assert bench.machine.time == pytest.approx(resumed + 0.1)


def test_a_sleep_holds_up_its_call_only() -> None:
    bench = Bench()
    bench.script("a", {"sleep": 5}, "b", call_id=1)
    bench.script("c", "d", call_id=2)
    bench.run()
    ended = [event.id for event in bench.events if isinstance(event, wire.Finished)]
    assert ended == [2, 1]
    assert bench.machine.time == pytest.approx(105)


def test_prefill_comes_in_slices_before_started() -> None:
    bench = Bench(deltas="x", prefill_s=0.35)
    bench.submit("a b c d")
    bench.run()
    done = [event.done_tokens for event in bench.events if isinstance(event, wire.PromptProgress)]
    assert done == [1, 2, 3, 4]
    assert bench.names()[4] == "Started"
    assert bench.machine.time == pytest.approx(100.35)
    (finished,) = [event for event in bench.events if isinstance(event, wire.Finished)]
    assert finished.timings.prefill_s == pytest.approx(0.35)


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_what_was_claimed() -> None:
    bench = Bench(size_gb=2, kv_gb_per_1k=1, deltas=500)
    assert bench.engine.memory() == wire.Memory(weights_bytes=2 * GIB)
    bench.submit(" ".join(["x"] * 400))
    for _ in range(100):
        bench.engine.step()
    assert bench.engine.memory().kv_bytes == GIB // 2
    bench.run()
    assert bench.engine.memory().kv_bytes == 0
