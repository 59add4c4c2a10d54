"""Which call of a vision model goes on when, with a generator that says what it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from engines import wire
from engines.answer import Answer
from engines.base import EngineError
from engines.text.calls import Call, Row
from engines.text.limits import DeviceMemory
from engines.text.model import KvCost
from engines.text.sampling import greedy
from engines.vision import batch
from engines.vision.batch import Asked, Batch, Ready
from engines.vision.inputs import Prepared
from engines.vision.model import LoadedVision

PROMPT = 10
TOKENS = 3
KV_A_TOKEN = 100


class Response(NamedTuple):
    uid: int
    token: int
    finish_reason: str | None


class Talks:
    """Every row says `TOKENS` tokens, from the step after it was inserted on."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.said: dict[int, int] = {}
        self.most = 0
        self.closed = False

    def insert(self, prompts: Any, max_tokens: Any, **given: Any) -> list[int]:
        uid = len(self.said)
        self.said[uid] = 0
        return [uid]

    def next(self) -> tuple[list[Any], list[Response]]:
        going = [uid for uid, said in self.said.items() if said < TOKENS]
        self.most = max(self.most, len(going))
        responses = []
        for uid in going:
            self.said[uid] += 1
            over = self.said[uid] == TOKENS
            responses.append(Response(uid, 7, "length" if over else None))
        return [], responses

    def remove(self, uid: int) -> bool:
        self.said[uid] = TOKENS
        return True

    def close(self) -> None:
        self.closed = True


class Plain:
    """A detokenizer: a letter for every token."""

    def add(self, token: int) -> str:
        return "x"

    def finish(self) -> str:
        return ""


class Mlx:
    """Takes every limit, keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: {} if name == "device_info" else 0


class Bench:
    """A batch with fakes all around, and what it emitted."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, kind: str = "qwen2_vl", kv_bytes: int = 0
    ) -> None:
        monkeypatch.setattr(batch, "BatchGenerator", self._make)
        monkeypatch.setattr(batch, "embed", self._embed)
        self.events: list[Any] = []
        self.generators: list[Talks] = []
        self.embedded: list[list[int]] = []
        self.fails: dict[int, Exception] = {}
        self.prompt = PROMPT
        limits = wire.Limits(0, 0, kv_bytes, 0, 0)
        memory = DeviceMemory(Mlx(), limits)
        self.batch = Batch(_loaded(kind), 512, memory, self._prepare, self.events.append)

    def _make(self, *given: Any, **options: Any) -> Talks:
        self.generators.append(Talks())
        return self.generators[-1]

    def _embed(self, model: Any, tokens: list[int], arrays: Any) -> dict[str, Any]:
        self.embedded.append(tokens)
        if error := self.fails.get(-tokens[0]):
            raise error
        return {}

    def _prepare(self, asked: Asked) -> Ready:
        request = asked.request
        if error := self.fails.get(request.id):
            raise error
        call = Call(
            request.id, [request.id] * self.prompt, TOKENS, None, str, lambda token: None, 0.0
        )
        for choice in range(request.n):
            answer = Answer(call.id, choice, None)
            call.rows.append(Row(call, greedy, [], Plain(), answer))
        return Ready(call, Prepared(call.prompt))

    def add(self, *ids: int, n: int = 1) -> None:
        for id_ in ids:
            self.batch.add(Asked(wire.Generate(id_, n=n), 0.0))

    def run(self) -> None:
        for _ in range(200):
            if not self.batch.busy:
                return
            self.batch.step()
        raise AssertionError("never over")

    def ends(self) -> dict[int, str]:
        """How each call ended, in order."""
        told: dict[int, str] = {}
        for event in self.events:
            if isinstance(event, wire.Finished | wire.Failed):
                assert event.id not in told
                told[event.id] = event.code if isinstance(event, wire.Failed) else "finished"
        return told

    @property
    def most_rows(self) -> int:
        return self.generators[-1].most


def _loaded(kind: str) -> LoadedVision:
    return LoadedVision(
        model=SimpleNamespace(language_model=None),
        processor=None,
        tokenizer=SimpleNamespace(eos_token_ids={1}),
        kind=kind,
        context_length=100,
        weights_bytes=0,
        vocabulary_size=10,
        kv=KvCost(0, ((KV_A_TOKEN, None),), 1),
        cast_bytes=0,
        modalities=("text", "image"),
        tower=None,
        mark="",
        mark_id=0,
    )


ROW_BYTES = KV_A_TOKEN * (PROMPT + TOKENS)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 2),
        ({"kind": "unheard_of"}, 1),
        ({"kv_bytes": ROW_BYTES}, 1),
        ({"kv_bytes": 2 * ROW_BYTES}, 2),
    ],
)
def test_how_many_rows_there_are(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], rows: int
) -> None:
    """With three tokens a row, and one call let in after the other, there are two at most."""
    bench = Bench(monkeypatch, **options)
    bench.add(1, 2, 3, 4)
    bench.run()
    assert bench.ends() == dict.fromkeys((1, 2, 3, 4), "finished")
    assert bench.most_rows == rows
    started = [event.id for event in bench.events if isinstance(event, wire.Started)]
    assert started == [1, 2, 3, 4]


def test_choices_share_their_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.add(1, n=3)
    bench.run()
    assert len(bench.embedded) == 1
    (finished,) = [event for event in bench.events if isinstance(event, wire.Finished)]
    assert finished.usage == wire.Usage(PROMPT, 3 * TOKENS)
    choices = [event.choice for event in bench.events if isinstance(event, wire.ChoiceFinished)]
    assert sorted(choices) == [0, 1, 2]


@pytest.mark.parametrize(
    ("place", "error", "code"),
    [
        (1, EngineError("context_length_exceeded", "long"), "context_length_exceeded"),
        (1, ZeroDivisionError(), "engine_error"),
        (-1, ValueError("one image only"), "invalid_request"),
        (-1, ZeroDivisionError(), "engine_error"),
    ],
)
def test_what_is_wrong_with_one_call_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, place: int, error: Exception, code: str
) -> None:
    """It is wrong when it is prepared (its id), or when it is embedded (less its id)."""
    bench = Bench(monkeypatch)
    bench.fails[place] = error
    bench.add(0, 1, 2)
    bench.run()
    assert bench.ends() == {0: "finished", 1: code, 2: "finished"}
    assert len(bench.generators) == 1


@pytest.mark.parametrize("steps", range(8))
def test_a_call_can_leave_at_every_stage(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    bench = Bench(monkeypatch)
    bench.add(0)
    bench.add(1, n=2)
    bench.add(2)
    for _ in range(steps):
        bench.batch.step()
    over = 1 in bench.ends()
    bench.batch.cancel(1)
    assert (bench.ends()[1] == "cancelled") is not over
    bench.run()
    assert set(bench.ends()) == {0, 1, 2}
    assert bench.batch.kv_bytes == 0


def test_a_long_prompt_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.prompt = 600
    bench.add(1, n=2)
    while bench.batch.busy:
        bench.batch.step()
    assert bench.events == [wire.WantTurn(600)]
    assert bench.batch.waiting == 1
    bench.batch.take_turn()
    bench.run()
    assert bench.ends() == {1: "finished"}
    kinds = [type(event) for event in bench.events]
    assert kinds.count(wire.TurnOver) == 1
    assert kinds.index(wire.Started) < kinds.index(wire.TurnOver) < kinds.index(wire.Finished)


@pytest.mark.parametrize("granted", [False, True])
def test_who_leaves_gives_the_turn_back(monkeypatch: pytest.MonkeyPatch, granted: bool) -> None:
    bench = Bench(monkeypatch)
    bench.prompt = 600
    bench.add(1)
    while bench.batch.busy:
        bench.batch.step()
    if granted:
        bench.batch.take_turn()
        bench.fails[-1] = ValueError("no")
        bench.batch.step()
    else:
        bench.batch.cancel(1)
    assert [type(event) for event in bench.events] == [wire.WantTurn, wire.TurnOver, wire.Failed]
    assert not bench.batch.busy


def test_a_generator_that_raised_is_never_stepped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.add(1, 2)
    for _ in range(3):
        bench.batch.step()
    monkeypatch.setattr(bench.generators[0], "next", lambda: 1 / 0)
    bench.batch.step()
    monkeypatch.undo()
    monkeypatch.setattr(batch, "embed", bench._embed)
    assert bench.ends()[1] == "engine_error"
    assert (bench.generators[0].closed, len(bench.generators)) == (True, 2)
    bench.add(3)
    bench.run()
    assert bench.ends()[3] == "finished"
