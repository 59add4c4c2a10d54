"""The scripted engine, driven step by step with a clock of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines import wire
from engines.base import Emitted, EngineError, LoadError
from engines.script import GIB
from engines.scripted import ScriptedEngine
from engines.words import words

LIMITS = wire.Limits(0, 0, 0, 0, 0)


class FakeMachine:
    """A clock that only `wait` moves, and a note of everything else."""

    def __init__(self) -> None:
        self.time = 100.0
        self.waits: list[float] = []
        self.done: list[str] = []
        self.stderr: list[str] = []

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def exit(self, code: int) -> None:
        self.done.append(f"exit {code}")

    def hang(self) -> None:
        self.done.append("hang")

    def freeze(self) -> None:
        self.done.append("freeze")

    def write_stderr(self, text: str) -> None:
        self.stderr.append(text)


class Bench:
    """An engine, its machine and everything it emitted."""

    def __init__(self, context_length: int | None = None, **options: Any) -> None:
        self.machine = FakeMachine()
        self.events: list[wire.CallEvent] = []
        spec = wire.EngineSpec(
            "scripted", "scripted", context_length=context_length, scripted=options
        )
        self.engine = ScriptedEngine(spec, LIMITS, self._emit, self.machine)

    def _emit(self, event: Emitted) -> None:
        assert not isinstance(event, wire.WantTurn | wire.TurnOver)
        self.events.append(event)

    def submit(self, content: object = "hi", call_id: int = 1, **fields: Any) -> None:
        messages = [{"role": "user", "content": content}]
        self.engine.submit(wire.Generate(call_id, messages, **fields))

    def script(self, *steps: object, call_id: int = 1, finish: str = "stop", **fields: Any) -> None:
        self.submit(json.dumps({"script": steps, "finish": finish}), call_id, **fields)

    def run(self, max_steps: int = 10_000) -> Bench:
        for _ in range(max_steps):
            if not self.engine.busy:
                return self
            self.engine.step()
        raise AssertionError("the engine never came to an end")

    def texts(self, call_id: int = 1) -> list[str]:
        return [
            event.text
            for event in self.events
            if isinstance(event, wire.TextDelta) and event.id == call_id
        ]

    def ends(self) -> list[tuple[str, str | None]]:
        return [
            (event.reason, event.stop_sequence)
            for event in self.events
            if isinstance(event, wire.ChoiceFinished)
        ]

    def usage(self) -> wire.Usage:
        (finished,) = [event for event in self.events if isinstance(event, wire.Finished)]
        return finished.usage

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


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


# --- loading --------------------------------------------------------------------------------------


def load(bench: Bench) -> list[wire.Loading]:
    reports: list[wire.Loading] = []
    bench.engine.load(reports.append)
    return reports


def test_loading_reports_bytes_over_the_time_it_takes() -> None:
    bench = Bench(size_gb=1, load_s=0.4)
    reports = load(bench)
    assert [report.done_bytes / GIB for report in reports] == [0, 0, 0.25, 0.5, 0.75, 1]
    assert bench.machine.time == pytest.approx(100.4)


def test_ready_names_context_and_memory() -> None:
    ready = Bench(size_gb=1, context_length=77).engine.load(lambda loading: None)
    assert (ready.context_length, ready.memory) == (77, wire.Memory(weights_bytes=GIB))
    assert (ready.voices, ready.dimensions) == (("alto", "bass"), 384)


@pytest.mark.parametrize(
    ("fail_loads", "number", "done", "fails"),
    [
        (0, 0, [], False),
        (2, 1, [], True),
        (2, 2, [], False),
        (["error", "ok"], 0, [], True),
        (["error", "ok"], 1, [], False),
        (["error", "ok"], 2, [], False),
        (["hang"], 0, ["hang"], False),
        ([{"exit": 139}], 0, ["exit 139"], False),
    ],
)
def test_failing_loads(fail_loads: object, number: int, done: list[str], fails: bool) -> None:
    bench = Bench(fail_loads=fail_loads, load_number=number)
    if fails:
        with pytest.raises(LoadError, match=f"load number {number}"):
            load(bench)
    else:
        load(bench)
    assert bench.machine.done == done


def test_a_stall_comes_at_its_fraction() -> None:
    bench = Bench(size_gb=1, load_s=1, load_stall_at=0.5)
    reported: list[float] = []

    def report(loading: wire.Loading) -> None:
        if not bench.machine.done:
            reported.append(loading.done_bytes / GIB)

    bench.engine.load(report)
    assert reported[-1] == 0.5
    assert bench.machine.done[0] == "hang"


@pytest.mark.parametrize(("flood", "lines"), [(True, 10_000), (False, 0), (7, 7)])
def test_a_flood_on_stderr(flood: object, lines: int) -> None:
    bench = Bench(stderr_flood=flood)
    load(bench)
    assert "".join(bench.machine.stderr).count("\n") == lines


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"size_gb": -1}, "size_gb"),
        ({"size_gb": "2"}, "size_gb"),
        ({"tokens_per_s": 0}, "tokens_per_s"),
        ({"load_stall_at": 1.5}, "load_stall_at"),
        ({"fail_loads": ["maybe"]}, "fail_loads"),
        ({"fail_loads": [{"exit": 300}]}, "fail_loads"),
        ({"exit_after": 1.5}, "exit_after"),
        ({"deltas": [1]}, "deltas"),
        ({"tok_per_s": 1}, "tok_per_s"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(LoadError, match=key):
        Bench(**options)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "done"),
    [("exit_after", "exit 1"), ("hang_after", "hang"), ("freeze_after", "freeze")],
)
def test_a_fault_strikes_after_its_deltas(option: str, done: str) -> None:
    bench = Bench(deltas=10, **{option: 3})
    bench.submit(call_id=1)
    bench.submit(call_id=2)
    said = 0
    while not bench.machine.done:
        assert bench.engine.busy
        said = len(bench.texts(1)) + len(bench.texts(2))
        bench.engine.step()
    assert said == 3
    assert bench.machine.done == [done]


def test_a_fault_comes_before_the_end_of_its_call() -> None:
    bench = Bench(deltas=2, exit_after=2)
    bench.submit()
    bench.engine.step()
    bench.engine.step()
    assert bench.names() == ["Started", "TextDelta", "TextDelta"]
    bench.engine.step()
    assert bench.machine.done == ["exit 1"]


def test_a_fault_after_no_delta_waits_for_a_call() -> None:
    bench = Bench(exit_after=0)
    assert not bench.engine.busy
    bench.submit()
    bench.engine.step()
    assert bench.machine.done == ["exit 1"]


@pytest.mark.parametrize(("given", "code"), [(True, 1), (139, 139), (0, 0)])
def test_a_script_can_exit(given: object, code: int) -> None:
    bench = Bench()
    bench.script("a", {"exit": given})
    while not bench.machine.done:
        bench.engine.step()
    assert bench.machine.done == [f"exit {code}"]
    assert bench.texts() == ["a"]


def test_close_drops_what_runs() -> None:
    bench = Bench()
    bench.submit()
    bench.engine.idle()
    bench.engine.set_limits(LIMITS)
    bench.engine.close()
    assert not bench.engine.busy
    assert bench.engine.waiting == 0
    assert bench.engine.prompt_cache() == wire.PromptCacheStats()


# --- parsers, choices, log-probabilities, questions -----------------------------------------------

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_named_parsers_take_its_text_apart() -> None:
    bench = Bench()
    parsers = wire.Parsers("hermes", "qwen3")
    bench.script("<think>", "hm ", "hm</think>", CALL, parsers=parsers, tools=TOOLS)
    bench.run()
    names = bench.names()
    assert names[:2] == ["Started", "ReasoningDelta"]
    assert names[-4:] == ["ToolCallStart", "ToolCallArguments", "ChoiceFinished", "Finished"]
    assert bench.texts() == []
    assert bench.ends() == [("tool_calls", None)]
    assert bench.usage().reasoning_tokens in (2, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},  # auto: a scripted model shows no format
        {"parsers": wire.Parsers("hermes", None)},
        {
            "parsers": wire.Parsers("hermes", None),
            "tools": TOOLS,
            "tool_choice": wire.ToolChoice("none"),
        },
    ],
    ids=["auto", "no tools", "none"],
)
def test_without_parser_or_tools_a_call_is_text(fields: dict[str, Any]) -> None:
    bench = Bench()
    bench.script(CALL, **fields)
    assert bench.run().texts() == [CALL]
    assert bench.ends() == [("stop", None)]


def test_without_parallel_calls_the_first_is_the_end() -> None:
    bench = Bench()
    choice = wire.ToolChoice(parallel=False)
    parsers = wire.Parsers("hermes", None)
    bench.script(CALL, CALL, "more", parsers=parsers, tools=TOOLS, tool_choice=choice)
    bench.run()
    assert bench.names().count("ToolCallStart") == 1
    assert bench.ends() == [("tool_calls", None)]


def test_a_token_is_a_marker_where_its_spelling_is_text() -> None:
    bench = Bench()
    parsers = wire.Parsers(None, "qwen3")
    steps = [{"token": "<think>"}, "a </think> b", {"token": "</think>"}, "c"]
    bench.script(*steps, parsers=parsers)
    bench.run()
    said = [event for event in bench.events if isinstance(event, wire.ReasoningDelta)]
    assert "".join(event.text for event in said) == "a </think> b"
    assert bench.texts() == ["c"]


def test_the_end_of_the_prompt_can_open_a_trace() -> None:
    bench = Bench()
    given = {"script": ["hm</think>", "yes"], "prompt_tail": "<think>\n"}
    bench.submit(json.dumps(given), parsers=wire.Parsers(None, "qwen3"))
    bench.run()
    assert wire.ReasoningDelta(1, 0, "hm") in bench.events
    assert bench.texts() == ["yes"]
    with pytest.raises(EngineError, match="prompt_tail"):
        bench.submit(json.dumps({"script": [], "prompt_tail": 1}), call_id=2)


def test_choices_get_the_same_script() -> None:
    bench = Bench()
    bench.script("one ", "two", n=3)
    bench.run()
    for number in range(3):
        deltas = [e for e in bench.events if isinstance(e, wire.TextDelta) and e.choice == number]
        assert [delta.text for delta in deltas] == ["one ", "two"]
    ends = [e.choice for e in bench.events if isinstance(e, wire.ChoiceFinished)]
    assert ends == [0, 1, 2]
    assert bench.usage() == wire.Usage(bench.usage().prompt_tokens, 6)


def test_logprobs_are_made_up_and_always_the_same() -> None:
    bench = Bench()
    bench.script("one two ", "END", "ING", logprobs=2, stop=("ENDED",))
    bench.run()
    deltas = [event for event in bench.events if isinstance(event, wire.TextDelta)]
    tokens = [each for delta in deltas for each in delta.logprobs or ()]
    assert [each.token for each in tokens] == ["one ", "two ", "END", "ING"]
    assert tokens[0] == wire.TokenLogprob("one ", -0.1, (("one ", -0.1), ("other1", -1.1)))
    bench.script("x", call_id=2)
    bench.run()
    assert bench.events[-3] == wire.TextDelta(2, 0, "x")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tool_choice": wire.ToolChoice("required"), "tools": TOOLS}, "tool_choice_unsupported"),
        ({"format": wire.Format("json_object")}, "unsupported"),
    ],
)
def test_what_a_script_cannot_promise_is_refused(fields: dict[str, Any], code: str) -> None:
    bench = Bench()
    with pytest.raises(EngineError) as caught:
        bench.submit(**fields)
    assert caught.value.code == code
    assert not bench.engine.busy


def test_a_prompt_can_be_text_or_tokens_and_a_script() -> None:
    bench = Bench(deltas="default")
    script = '{"script": ["told"]}'
    bench.engine.submit(wire.Generate(1, prompt="three plain words"))
    bench.engine.submit(wire.Generate(2, prompt=script))
    cut = bench.engine.answer(wire.Tokenize(9, "", script))
    assert isinstance(cut, wire.Tokenized)
    bench.engine.submit(wire.Generate(3, token_ids=cut.token_ids))
    bench.run()
    assert [bench.texts(call_id) for call_id in (1, 2, 3)] == [["default"], ["told"], ["told"]]
    started = [e.prompt_tokens for e in bench.events if isinstance(e, wire.Started)]
    assert started == [3, 2, 2]
    with pytest.raises(EngineError, match="unknown"):
        bench.engine.submit(wire.Generate(4, token_ids=[5]))


def test_questions_are_answered_by_words() -> None:
    engine = Bench(context_length=50).engine
    messages = [{"role": "user", "content": "a b c"}]
    assert engine.answer(wire.CountTokens(1, "", messages)) == wire.Counted(1, 3)
    cut = engine.answer(wire.Tokenize(2, "", "a b"))
    assert isinstance(cut, wire.Tokenized)
    assert cut.context_length == 50
    assert engine.answer(wire.Detokenize(3, "", cut.token_ids)) == wire.Detokenized(3, "a b")
