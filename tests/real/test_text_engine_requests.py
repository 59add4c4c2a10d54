"""What one request of the text engine may ask for, alone and beside requests that ask otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engines.text.engine
from engines import wire
from engines.base import EngineError
from engines.text.calls import Row
from engines.text.model import LoadedModel, load
from tests.fixtures.make_models import make
from tests.real.test_text_engine import GREEDY, HERMES, LIMITS, NO_CACHE, SCRIPTS, STORY, Driven

EMOJI = "Use emoji."
END = 1001
"""The token that ends a turn, id and all, in the fixture's vocabulary."""


@pytest.fixture
def hermes() -> Iterator[Driven]:
    driven = Driven(HERMES)
    yield driven
    driven.engine.close()


@pytest.fixture(scope="module")
def wander_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("random-wander", tmp_path_factory.mktemp("models"))


@pytest.fixture
def wander(wander_path: Path) -> Iterator[Driven]:
    driven = Driven(wander_path, NO_CACHE)
    yield driven
    driven.engine.close()


def submit(driven: Driven, call_id: int, **fields: Any) -> None:
    driven.engine.submit(wire.Generate(call_id, sampling=GREEDY, **fields))


def choice(driven: Driven, call_id: int, number: int) -> str:
    deltas = [e for e in driven.of(call_id) if isinstance(e, wire.TextDelta)]
    return "".join(delta.text for delta in deltas if delta.choice == number)


def logprobs(driven: Driven, call_id: int = 0) -> list[wire.TokenLogprob]:
    deltas = [e for e in driven.of(call_id) if isinstance(e, wire.TextDelta)]
    return [each for delta in deltas for each in delta.logprobs or ()]


# --- prompts ----------------------------------------------------------------------------------


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_a_prompt_as_text_and_as_tokens_is_the_prompt_as_messages(hermes: Driven) -> None:
    hermes.submit(0, "Say hello.")
    submit(hermes, 1, prompt=chat("Say hello."))
    ids = hermes.engine.answer(wire.Tokenize(9, "", chat("Say hello.")))
    assert isinstance(ids, wire.Tokenized)
    submit(hermes, 2, token_ids=ids.token_ids)
    hermes.run()
    assert [hermes.text(n) for n in range(3)] == [SCRIPTS["Say hello."]] * 3
    counts = {hermes.one(n, wire.Started).prompt_tokens for n in range(3)}
    assert counts == {len(ids.token_ids)}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": ""}, "empty"),
        ({"token_ids": []}, "empty"),
        ({"token_ids": [5, 1024]}, "1024"),
        ({"token_ids": [-1]}, "-1"),
        ({"prompt": "a", "n": 0}, "n is 0"),
        ({"prompt": "a", "n": 10**9}, "from 1 to 128"),
        ({"prompt": "a", "logprobs": -1}, "logprobs is -1"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_requests_that_cannot_be(hermes: Driven, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        submit(hermes, 0, **fields)
    assert caught.value.code == "invalid_request"
    assert not hermes.engine.busy


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (wire.Sampling(logit_bias={4: 1.0, 1024: 1.0}), "1024"),
        (wire.Sampling(logit_bias={4: math.nan}), "finite"),
        (wire.Sampling(presence_penalty=math.inf), "finite"),
        (wire.Sampling(repetition_penalty=0.0), "repetition_penalty"),
    ],
)
def test_sampling_that_cannot_be(hermes: Driven, sampling: wire.Sampling, says: str) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        hermes.submit(0, "Say hello.", sampling=sampling)
    assert caught.value.code == "invalid_request"


# --- counting ---------------------------------------------------------------------------------


def test_a_count_is_the_later_prompt_tokens(hermes: Driven) -> None:
    messages = [{"role": "user", "content": "Say hello. <|im_end|>"}]
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_start|>"}}]
    for fields in ({}, {"tools": tools}, {"tools": tools, "tool_choice": wire.ToolChoice("none")}):
        counted = hermes.engine.answer(wire.CountTokens(5, "", messages, **fields))
        hermes.events.clear()
        hermes.engine.submit(wire.Generate(0, messages, max_tokens=1, **fields))
        hermes.run()
        assert counted == wire.Counted(5, hermes.one(0, wire.Started).prompt_tokens)


def test_detokenizing_undoes_tokenizing(hermes: Driven) -> None:
    text = f"{STORY} 日本語 <|im_end|> ✅\n"
    tokens = hermes.engine.answer(wire.Tokenize(1, "", text))
    assert isinstance(tokens, wire.Tokenized)
    assert tokens.context_length == 8192
    back = hermes.engine.answer(wire.Detokenize(2, "", tokens.token_ids))
    assert back == wire.Detokenized(2, text)
    with pytest.raises(EngineError, match="99999"):
        hermes.engine.answer(wire.Detokenize(3, "", [99_999]))


# --- the next token ---------------------------------------------------------------------------


def test_a_bias_forbids_and_forces(hermes: Driven) -> None:
    plain = hermes.ask("Say hello.")
    first = hermes.engine.answer(wire.Tokenize(1, "", plain))
    assert isinstance(first, wire.Tokenized)
    without = wire.Sampling(0.0, logit_bias={first.token_ids[0]: -100.0})
    assert not hermes.ask("Say hello.", sampling=without, max_tokens=3).startswith(plain[:2])
    forced = wire.Sampling(0.0, logit_bias={END: 100.0})
    assert hermes.ask("Say hello.", sampling=forced) == ""


@pytest.mark.parametrize(
    ("penalties", "said"),
    [
        ({}, "ffffff"),
        ({"presence_penalty": 1.5}, "fgffff"),
        ({"presence_penalty": 3.0}, "fghfff"),
        ({"frequency_penalty": 1.1}, "fgfghf"),
        ({"frequency_penalty": 0.4}, "ffgffg"),
        ({"repetition_penalty": 1.03}, "fgffff"),
    ],
)
def test_penalties(wander: Driven, penalties: dict[str, float], said: str) -> None:
    """Three letters are far ahead of all other tokens, and each is 1 ahead of the next."""
    ahead = {70: 50.0, 71: 49.0, 72: 48.0}
    sampling = wire.Sampling(0.0, logit_bias=ahead, **penalties)  # type: ignore[arg-type]
    assert wander.ask("again", sampling=sampling, max_tokens=6) == said


# --- log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("question", ["Say hello.", EMOJI])
def test_logprobs_travel_with_their_text(hermes: Driven, question: str) -> None:
    assert hermes.ask(question, logprobs=3) == SCRIPTS[question]
    for delta in hermes.of(0):
        if isinstance(delta, wire.TextDelta):
            assert delta.logprobs
            assert "".join(each.token for each in delta.logprobs) == delta.text
    found = logprobs(hermes)
    assert len(found) == hermes.one(0, wire.Finished).usage.completion_tokens - 1  # no end token
    for each in found:
        values = [value for _, value in each.top]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert each.logprob == values[0] <= 0  # greedy: the best one was drawn


def test_logprobs_of_text_held_back_for_a_stop_string(hermes: Driven) -> None:
    text = hermes.ask("Say hello.", logprobs=0, stop=("help you today!",))
    assert text == SCRIPTS["Say hello."]
    assert "".join(each.token for each in logprobs(hermes)) == text
    text = hermes.ask("Say hello.", logprobs=0, stop=("help",))
    assert "".join(each.token for each in logprobs(hermes)).startswith(text)
    assert all(each.top == () for each in logprobs(hermes))


def test_logprobs_are_of_the_answer_and_not_of_trace_or_calls(hermes: Driven) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    auto = wire.Parsers()
    text = hermes.ask("Think about it.", logprobs=1, parsers=auto, tools=tools)
    assert "".join(each.token for each in logprobs(hermes)).strip() == text
    text = hermes.ask("Weather and time in Paris?", logprobs=1, parsers=auto, tools=tools)
    assert "".join(each.token for each in logprobs(hermes)).strip() == text == "I will check both."


def test_logprobs_are_those_after_biases(hermes: Driven) -> None:
    forced = wire.Sampling(0.0, logit_bias={65: 1000.0, 66: -1e9})
    hermes.ask("Say hello.", sampling=forced, logprobs=20, max_tokens=1)
    (found,) = logprobs(hermes)
    assert found.logprob == pytest.approx(0.0)
    assert all(value >= -9999.0 for _, value in found.top)


# --- choices ------------------------------------------------------------------------------------


def test_choices_share_one_prefill(wander: Driven) -> None:
    words = "many words " * 20
    sampling = wire.Sampling(temperature=1.5, seed=11)
    alone = []
    for seed in (11, 12, 13):
        seeded = wire.Sampling(temperature=1.5, seed=seed)
        alone.append(wander.ask(words, sampling=seeded, max_tokens=12))
    prompt = wander.one(0, wire.Started).prompt_tokens
    wander.events.clear()
    wander.submit(0, words, sampling=sampling, max_tokens=12, n=3)
    wander.run()
    assert [choice(wander, 0, number) for number in range(3)] == alone
    progress = [e for e in wander.of(0) if isinstance(e, wire.PromptProgress)]
    assert [e.done_tokens for e in progress] == [prompt - 1, prompt]
    assert wander.one(0, wire.Finished).usage == wire.Usage(prompt, 36)
    ends = [e for e in wander.of(0) if isinstance(e, wire.ChoiceFinished)]
    assert sorted(end.choice for end in ends) == [0, 1, 2]
    assert isinstance(wander.of(0)[-1], wire.Finished)


@pytest.mark.parametrize("limits", [LIMITS, NO_CACHE], ids=["cache", "no-cache"])
def test_greedy_choices_are_all_the_same(limits: wire.Limits) -> None:
    hermes = Driven(HERMES, limits)
    for _ in range(2):  # the second time, the whole prompt comes from the cache
        hermes.events.clear()
        hermes.submit(0, STORY, n=3)
        hermes.run()
        assert [choice(hermes, 0, number) for number in range(3)] == [SCRIPTS[STORY]] * 3
    assert (hermes.one(0, wire.Started).cached_tokens > 0) == (limits is LIMITS)
    submit(hermes, 1, token_ids=[65], n=2, max_tokens=4)
    hermes.run()
    assert choice(hermes, 1, 0) == choice(hermes, 1, 1)
    assert hermes.engine.memory().kv_bytes == 0


def test_more_choices_than_rows_take_turns() -> None:
    tight = wire.Limits(2**31, 2**23, 2048 * 256 * 3, 0, 2**24)
    driven = Driven(HERMES, tight)
    driven.submit(0, "Say hello.", n=7)
    driven.submit(1, "Say hello.")
    most = 0
    while driven.engine.busy:
        driven.engine.step()
        most = max(most, driven.engine.memory().kv_bytes)
    assert 0 < most <= tight.kv_bytes + 2048 * 256  # and the prompt that the others wait for
    assert [choice(driven, 0, n) for n in range(7)] == [SCRIPTS["Say hello."]] * 7
    assert driven.text(1) == SCRIPTS["Say hello."]


def test_a_cancel_ends_all_choices(hermes: Driven) -> None:
    hermes.submit(0, STORY, n=3)
    hermes.submit(1, "Say hello.", n=2)
    for _ in range(6):
        hermes.engine.step()
    hermes.engine.cancel(0)
    assert isinstance(hermes.of(0)[-1], wire.Failed)
    hermes.run()
    assert isinstance(hermes.of(0)[-1], wire.Failed)
    assert [choice(hermes, 1, number) for number in range(2)] == [SCRIPTS["Say hello."]] * 2
    assert hermes.engine.memory().kv_bytes == 0


def test_a_text_that_cannot_be_made_fails_its_call_alone(
    hermes: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes.submit(0, STORY, n=3)
    hermes.submit(1, STORY)
    for _ in range(8):
        hermes.engine.step()
    shown = Row.show

    def show(row: Row, token: int, drawn: Any) -> Any:
        if row is row.call.rows[-1] and row.call.id == 0:
            raise ValueError("no such token")
        return shown(row, token, drawn)

    monkeypatch.setattr(Row, "show", show)
    hermes.run()
    assert "no such token" in hermes.one(0, wire.Failed).message
    assert isinstance(hermes.of(0)[-1], wire.Failed)
    assert hermes.text(1) == SCRIPTS[STORY]
    assert hermes.engine.memory().kv_bytes == 0


def test_choices_of_a_model_that_cannot_be_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbatchable(spec: wire.EngineSpec, report: Any) -> LoadedModel:
        return replace(load(spec, report), batchable=False)

    monkeypatch.setattr(engines.text.engine, "load", unbatchable)
    driven = Driven(HERMES, prefill_step_size=8)
    driven.submit(0, "Say hello.", n=3, logprobs=2)
    driven.submit(1, "Say hello.", sampling=wire.Sampling(0.0, logit_bias={END: 100.0}))
    driven.run()
    assert [choice(driven, 0, number) for number in range(3)] == [SCRIPTS["Say hello."]] * 3
    assert driven.text(1) == ""
    assert len(logprobs(driven)) == 3 * (len(logprobs(driven)) // 3) > 0


# --- all together -------------------------------------------------------------------------------


MIX: dict[str, dict[str, Any]] = {
    "plain": {},
    "seeded": {"sampling": wire.Sampling(1.2, top_p=0.9, seed=5)},
    "biased": {"sampling": wire.Sampling(0.0, logit_bias={70: 2.0, 71: -5.0})},
    "penalised": {"sampling": wire.Sampling(0.0, presence_penalty=1.5, frequency_penalty=0.5)},
    "repetition": {"sampling": wire.Sampling(0.8, repetition_penalty=1.3, seed=9)},
    "logprobs": {"logprobs": 4},
    "choices": {"n": 3, "sampling": wire.Sampling(1.0, min_p=0.02, seed=3)},
    "budget": {
        "reasoning": wire.Reasoning(budget_tokens=4),
        "parsers": wire.Parsers(None, "think"),
    },
}


def test_in_a_mixed_batch_everyone_gets_what_it_gets_alone(wander: Driven) -> None:
    def told(call_id: int) -> list[Any]:
        return [choice(wander, call_id, number) for number in range(3)] + logprobs(wander, call_id)

    prompts = {name: f"{name} and then " * (3 + at * 4) for at, name in enumerate(MIX)}
    alone = []
    for name, fields in MIX.items():
        wander.ask(prompts[name], max_tokens=24, **fields)
        alone.append(told(0))
    wander.events.clear()
    for call_id, (name, fields) in enumerate(MIX.items()):
        wander.submit(call_id, prompts[name], max_tokens=24, **fields)
        wander.engine.step()
        wander.engine.step()
    wander.run()
    together = [told(call_id) for call_id in range(len(MIX))]
    for name, one, other in zip(MIX, alone, together, strict=True):
        assert [e for e in one if isinstance(e, str)] == [e for e in other if isinstance(e, str)], (
            name
        )
    values = [(a.logprob, b.logprob) for a, b in zip(alone[5][3:], together[5][3:], strict=True)]
    assert len(values) == 24
    assert all(a == pytest.approx(b, abs=1e-4) for a, b in values)
