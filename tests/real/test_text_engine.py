"""The text engine on real (small) models: what it says, in which order, and what it survives."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import engines.text.engine
from engines import wire
from engines.base import Emitted, LoadError
from engines.text.engine import TextEngine
from engines.text.model import LoadedModel, load
from tests.fixtures.make_models import make

MODELS = Path(__file__).parents[1] / "fixtures" / "models"
HERMES = MODELS / "scripted-hermes"
NANO = MODELS / "random-nano"

LIMITS = wire.Limits(
    charge_bytes=2**31,
    weights_bytes=2**23,
    kv_bytes=2**27,
    prompt_cache_bytes=2**26,
    mlx_cache_bytes=2**24,
)
NO_CACHE = wire.Limits(2**31, 2**23, 2**27, 0, 2**24)

GREEDY = wire.Sampling(temperature=0.0)
UNPARSED = wire.Parsers(None, None)
SCRIPTS: dict[str, str] = {
    question: answer.removesuffix("<|im_end|>")
    for question, answer in json.loads((HERMES / "scripts.json").read_text()).items()
}
STORY = "Tell me a story."


class Driven:
    """An engine and everything it emitted, with a gateway that grants each turn at once."""

    def __init__(self, path: Path, limits: wire.Limits = LIMITS, **spec: Any) -> None:
        self.events: list[Any] = []
        self.stages: list[wire.Loading] = []
        self.engine = TextEngine(
            wire.EngineSpec("tested", "text", path=str(path), **spec), limits, self.emit
        )
        self.ready = self.engine.load(self.stages.append)

    def emit(self, event: Emitted) -> None:
        if isinstance(event, wire.WantTurn):
            self.engine.take_turn()
        elif not isinstance(event, wire.TurnOver):
            self.events.append(event)

    def submit(self, call_id: int, question: str, **options: Any) -> None:
        options.setdefault("sampling", GREEDY)
        options.setdefault("parsers", UNPARSED)
        messages = [{"role": "user", "content": question}]
        self.engine.submit(wire.Generate(call_id, messages, **options))

    def run(self, at_most: int = 2000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(at_most):
            if not self.engine.busy:
                return
            self.engine.step()
        raise AssertionError(f"still busy after {at_most} steps")

    def ask(self, question: str, **options: Any) -> str:
        """The answer to one question, alone in the batch."""
        self.events.clear()
        self.submit(0, question, **options)
        self.run()
        return self.text(0)

    def of(self, call_id: int) -> list[Any]:
        return [event for event in self.events if event.id == call_id]

    def text(self, call_id: int) -> str:
        return "".join(e.text for e in self.of(call_id) if isinstance(e, wire.TextDelta))

    def one(self, call_id: int, kind: type[Any]) -> Any:
        (event,) = [event for event in self.of(call_id) if isinstance(event, kind)]
        return event


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


# --- load -----------------------------------------------------------------------------------


def test_ready_says_what_was_loaded_and_set(hermes: Driven) -> None:
    ready = hermes.ready
    assert ready.context_length == 8192
    assert ready.memory.weights_bytes == 1_837_568
    assert ready.applied == {
        "memory_limit": 2**31,
        "cache_limit": 2**24,
        "wired_limit": 2**23 + 2**27,
    }
    assert [stage.stage for stage in hermes.stages] == [
        "reading configuration",
        "reading weights",
        "reading weights",
        "building tokenizer",
        "first token",
    ]
    assert hermes.stages[2].done_bytes == hermes.stages[2].total_bytes == 1_837_568


def test_the_operator_may_lower_the_context_length_only() -> None:
    assert Driven(HERMES, context_length=512).ready.context_length == 512
    assert Driven(HERMES, context_length=10**6).ready.context_length == 8192


def test_the_context_is_what_the_kv_limit_holds() -> None:
    # 2 layers of 4 heads of 32, keys and values, 4 bytes each: 2048 bytes a token.
    small = wire.Limits(2**31, 2**23, 2048 * 1000, 0, 2**24)
    assert Driven(HERMES, small).ready.context_length == 768


def test_float16_is_cast_on_a_cpu(tmp_path: Path) -> None:
    if mx.default_device() != mx.cpu:
        pytest.fail("this test is about MLX's CPU build; deselect it on a GPU")
    for file in NANO.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = mx.load(str(NANO / "model.safetensors"))
    assert isinstance(weights, dict)
    half = {name: array.astype(mx.float16) for name, array in weights.items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), half)
    driven = Driven(tmp_path)
    whole = sum(array.size * 4 for array in weights.values())
    assert driven.ready.memory.weights_bytes == whole
    assert driven.ready.applied["float16_cast_to_float32"] == whole
    assert any("float16" in stage.stage for stage in driven.stages)


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        ("directory", "not a directory"),
        ("config.json", "no config.json"),
        ("model.safetensors", "no model*.safetensors"),
        ("model_type", "cannot be loaded"),
        ("weights", "cannot be loaded"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(tmp_path: Path, break_it: str, says: str) -> None:
    for file in NANO.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path
    if break_it == "directory":
        path = tmp_path / "missing"
    elif break_it == "model_type":
        (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}')
    elif break_it == "weights":
        (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    else:
        (tmp_path / break_it).unlink()
    with pytest.raises(LoadError) as caught:
        Driven(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("work", "printed"),
    [
        (
            "driven = Driven(HERMES); print(driven.ask('Say hello.')); driven.engine.close()",
            "Hello!",
        ),
        ("Driven(HERMES / 'missing')", "LoadError"),
        ("TextEngine(SPEC, LIMITS, print).load(stop_at_first_token)", "Stop"),
    ],
)
def test_a_process_exits_cleanly_after_an_engine_in_a_thread(work: str, printed: str) -> None:
    """MLX aborts a process at exit when a thread that used it ended without leaving."""
    program = f"""
import threading
from tests.real.test_text_engine import *

SPEC = wire.EngineSpec("tested", "text", path=str(HERMES))

class Stop(BaseException):
    pass

def stop_at_first_token(loading):
    if loading.stage == "first token":
        raise Stop

def work():
    try:
        {work}
    except BaseException as error:
        print(type(error).__name__)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert printed in ended.stdout


# --- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("question", SCRIPTS)
def test_every_script_word_for_word(hermes: Driven, question: str) -> None:
    assert hermes.ask(question) == SCRIPTS[question]
    assert hermes.one(0, wire.ChoiceFinished).reason == "stop"
    assert not any("\ufffd" in e.text for e in hermes.of(0) if isinstance(e, wire.TextDelta))


def test_the_order_of_events(hermes: Driven) -> None:
    hermes.ask("Say hello.")
    kinds = [type(event) for event in hermes.events]
    deltas = kinds.count(wire.TextDelta)
    assert kinds == [
        wire.Started,
        wire.PromptProgress,
        wire.PromptProgress,
        *[wire.TextDelta] * deltas,
        wire.ChoiceFinished,
        wire.Finished,
    ]
    done = hermes.one(0, wire.Finished)
    assert done.usage.prompt_tokens == hermes.one(0, wire.Started).prompt_tokens
    assert done.usage.completion_tokens == deltas + 1  # and the token that ends the text
    assert min(done.timings.queue_s, done.timings.prefill_s, done.timings.decode_s) >= 0


def test_long_prompts_go_in_chunks() -> None:
    driven = Driven(NANO, prefill_step_size=16)
    driven.ask("word " * 40, max_tokens=1)
    progress = [e for e in driven.events if isinstance(e, wire.PromptProgress)]
    total = progress[0].total_tokens
    assert [e.done_tokens for e in progress] == [*range(16, total - 1, 16), total - 1, total]


def test_max_tokens_ends_with_length(hermes: Driven) -> None:
    hermes.ask(STORY, max_tokens=5)
    assert hermes.one(0, wire.ChoiceFinished).reason == "length"
    assert hermes.one(0, wire.Finished).usage.completion_tokens == 5
    assert SCRIPTS[STORY].startswith(hermes.text(0))


@pytest.mark.parametrize("stop", [" slow", "a small model", "O", "laptop. It"])
def test_stop_strings_end_the_text_right_before_them(hermes: Driven, stop: str) -> None:
    story = SCRIPTS[STORY]
    assert hermes.ask(STORY, stop=(stop, "never said")) == story[: story.index(stop)]
    finished = hermes.one(0, wire.ChoiceFinished)
    assert (finished.reason, finished.stop_sequence) == ("stop", stop)
    assert hermes.engine.memory().kv_bytes == 0


def test_a_stop_string_that_only_begins_is_shown(hermes: Driven) -> None:
    assert hermes.ask("Say hello.", stop=("today?!",)) == SCRIPTS["Say hello."]


# --- batching -------------------------------------------------------------------------------


def joined_at_random(driven: Driven, questions: list[str], seed: int, **options: Any) -> None:
    """Submits the questions at random steps while earlier ones run."""
    chance = random.Random(seed)
    for call_id, question in enumerate(questions):
        driven.submit(call_id, question, **options)
        for _ in range(chance.randrange(12)):
            if driven.engine.busy:
                driven.engine.step()
    driven.run()


@pytest.mark.parametrize("seed", range(3))
def test_greedy_texts_do_not_depend_on_the_batch(hermes: Driven, seed: int) -> None:
    questions = random.Random(seed).sample(sorted(SCRIPTS), 8)
    joined_at_random(hermes, questions, seed)
    assert [hermes.text(n) for n in range(8)] == [SCRIPTS[question] for question in questions]


@pytest.mark.parametrize("seed", range(3))
def test_random_weights_give_each_prompt_the_text_it_gets_alone(wander: Driven, seed: int) -> None:
    """No trained margin helps here: the two best tokens are often within a thousandth."""
    chance = random.Random(seed)
    words = sorted(SCRIPTS[STORY].split())
    questions = [" ".join(chance.choices(words, k=chance.randrange(1, 60))) for _ in range(8)]
    alone = [wander.ask(question, max_tokens=30) for question in questions]
    wander.events.clear()
    joined_at_random(wander, questions, seed, max_tokens=30)
    assert len(set(alone)) == 8
    assert [wander.text(n) for n in range(8)] == alone


def test_a_seed_gives_the_same_text_in_any_company(wander: Driven) -> None:
    seeded = wire.Sampling(temperature=1.5, top_p=0.95, seed=7)
    alone = wander.ask("the same words", sampling=seeded, max_tokens=30)
    wander.events.clear()
    for call_id in range(1, 5):
        sampling = wire.Sampling(temperature=call_id / 2, top_k=call_id * 3)
        wander.submit(call_id, f"other words {call_id}", sampling=sampling, max_tokens=40)
        wander.engine.step()
    wander.submit(0, "the same words", sampling=seeded, max_tokens=30)
    wander.run()
    assert wander.text(0) == alone
    assert len({wander.text(call_id) for call_id in range(5)}) == 5


def test_no_more_rows_than_the_kv_limit_holds() -> None:
    tight = wire.Limits(2**31, 2**23, 2048 * 256 * 3, 0, 2**24)
    driven = Driven(HERMES, tight)
    for call_id in range(6):
        driven.submit(call_id, "Say hello.")
    most = 0
    while driven.engine.busy:
        driven.engine.step()
        most = max(most, driven.engine.memory().kv_bytes)
    assert 0 < most <= tight.kv_bytes
    assert [driven.text(n) for n in range(6)] == [SCRIPTS["Say hello."]] * 6


def test_models_that_cannot_be_batched_are_served_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unbatchable(spec: wire.EngineSpec, report: Any) -> LoadedModel:
        return replace(load(spec, report), batchable=False)

    monkeypatch.setattr(engines.text.engine, "load", unbatchable)
    driven = Driven(HERMES, prefill_step_size=8)
    questions = ["Use emoji.", STORY, "Count to ten."]
    for call_id, question in enumerate(questions):
        driven.submit(call_id, question, stop=(" slow",))
    driven.engine.step()
    assert (driven.engine.running, driven.engine.waiting) == (1, 2)
    driven.run()
    expected = [SCRIPTS[question].split(" slow")[0] for question in questions]
    assert [driven.text(n) for n in range(3)] == expected
    assert driven.one(2, wire.Finished).usage.completion_tokens > 20
    assert driven.ask("Count to ten.") == SCRIPTS["Count to ten."]
    assert driven.one(0, wire.Started).cached_tokens > 0
