"""What `explain` says in one sentence, in every situation, and that all of it is JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.api.explain import body_of
from gateway.residency import ModelSpec
from tests.unit.residency.play import Play, play

A_IN_USE = "0 request 1 A -> load A, wait 1 loading\n1 ready A 8 -> grant 1 A\n"
A_IDLE = A_IN_USE + "2 release 1 ->\n"


@pytest.mark.parametrize(
    ("story", "now", "model", "words"),
    [
        ("", 1, "A", "Model 'A' is unloaded and needs 8 B: its load would start at once, as 10 B"),
        ("", 1, "A", "of 10 B are free, and how long the load takes is not known yet."),
        (A_IDLE, 20, "A", "Model 'A' is ready: a request now would be served at once."),
        (A_IDLE, 20, "B", "its load would start at once; for it 'A' would leave"),
        (A_IDLE, 3, "B", "start after about 3 s, held back by the memory budget"),
        (A_IN_USE, 20, "B", "a request now would wait (policy wait); what is in the way is the"),
        (A_IN_USE, 20, "B", "memory budget (manager.memory_budget_gb); 'A' is ready (in use by 1"),
        ("0 request 1 A -> load A, wait 1 loading", 1, "A", "Model 'A' is loading: a request now"),
        (A_IN_USE + "2 crash A segfault ->", 3, "A", "Model 'A' is failed and needs 8 B: its load"),
    ],
)
def test_the_sentence(story: str, now: float, model: str, words: str) -> None:
    body = told(play().run(story), now, model)
    assert words in body["sentence"]


def test_a_refusal_is_what_a_client_would_get() -> None:
    body = told(play("fail").run(A_IN_USE), 20, "B")
    assert body["refusal"]["code"] == "no_capacity"
    assert body["refusal"]["status"] == 503
    assert body["refusal"]["retry_after_s"] >= 1
    assert body["sentence"].startswith("A request now would be refused (no_capacity): No room")


def test_who_is_ahead_and_what_a_load_takes() -> None:
    models = (ModelSpec("A", 8, max_concurrency=1), ModelSpec("B", 8, expected_load_s=7))
    played = play("wait", *models).run(A_IN_USE + "2 request 2 A -> wait 2 room\n")
    body = told(played, 3, "A")
    assert "queued until a running call ends, behind 1 other request." in body["sentence"]
    free = told(play("wait", *models), 0, "B")
    assert free["sentence"].endswith("and the load takes about 7 s.")


def test_a_cache_that_would_be_taken_is_named() -> None:
    models = (ModelSpec("A", 8, prompt_cache_bytes=4), ModelSpec("B", 5))
    body = told(play("wait", *models).run(A_IDLE), 20, "B")
    assert body["shrinks"] == ["A"]
    assert "for it 'A' would lose its prompt cache" in body["sentence"]


def told(played: Play, now: float, model: str) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(body_of(played.scheduler.explain(now, model)))
    )
    return body
