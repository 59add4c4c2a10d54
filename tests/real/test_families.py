"""Each family's own way of writing, really generated, through a real daemon in every dialect."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jsonschema
import pytest

from tests.fixtures.train.check import check
from tests.fixtures.train.families import Family, families
from tests.fixtures.train.vocabulary import settings
from tests.harness.daemon import Daemon, daemon, registry
from tests.harness.dialects import Asker, Question, Seen, askers, user

pytestmark = pytest.mark.anyio

WEATHER_IN_PARIS = "What is the weather in Paris?"
CITY = {"city": {"type": "string"}, "unit": {"type": "string"}}
TOOLS = {
    "get_weather": {"type": "object", "properties": CITY},
    "get_time": {"type": "object", "properties": {"tz": {"type": "string"}}},
}
FEW_WORDS = {
    name: {
        "type": "object",
        "properties": {key: {"enum": [value]}},
        "required": [key],
        "additionalProperties": False,
    }
    for name, key, value in (("get_weather", "city", "Paris"), ("get_time", "tz", "UTC"))
}
"""Tools whose arguments cannot go on for ever."""
WEATHER = ("get_weather", {"city": "Paris", "unit": "celsius"})
TIME = ("get_time", {"tz": "Europe/Paris"})
THOUGHT = "The user wants me to think. 2 + 2 = 4."

STRUCTURED = {
    WEATHER_IN_PARIS: Seen(calls=(WEATHER,), reason="tool_calls"),
    "Weather and time in Paris?": Seen(calls=(WEATHER, TIME), reason="tool_calls"),
    "Python tag call.": Seen(calls=(WEATHER,), reason="tool_calls"),
    "Old style call.": Seen(calls=(WEATHER,), reason="tool_calls"),
    "Think about it.": Seen("The answer is 4.", THOUGHT),
    "Think then call.": Seen(
        trace="I need the weather tool.", calls=(WEATHER,), reason="tool_calls"
    ),
}
"""What is not only text; whatever a family's model has no question for is not asked of it."""

OTHERWISE: dict[tuple[str, str], dict[str, Any]] = {
    ("hermes", "Weather and time in Paris?"): {"text": "I will check both."},
    ("harmony", WEATHER_IN_PARIS): {"trace": "Need the weather tool."},
}
"""Where a family's model says more than that."""

ASKED_WITHOUT_NEED = "The user asks something simple."
"""What the harmony model thinks before all of its plain answers."""


def expected(family: Family, question: str) -> Seen:
    """What a client has to see; an answer without structure as it was generated."""
    seen = STRUCTURED.get(question)
    if seen is None:
        spoken = family.spoken(question)
        *_, text = spoken.rpartition("<|message|>")
        return Seen(text, ASKED_WITHOUT_NEED if family.name == "harmony" else "")
    return dataclasses.replace(seen, **OTHERWISE.get((family.name, question), {}))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon with all of them, of which two are loaded at a time."""
    entries: list[dict[str, Any]] = [
        {"name": family.name, "path": str(family.folder), "max_concurrency": 16}
        for family in families().values()
    ]
    document = registry(*entries, budget_gb=4, max_engines=2, standby=1)
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module", params=list(families()))
def family(request: pytest.FixtureRequest) -> Family:
    return families()[request.param]


@pytest.fixture
async def dialects(gateway: Daemon) -> AsyncIterator[list[Asker]]:
    async with askers(gateway.url) as known:
        yield list(known.values())


def test_the_kept_model_says_what_it_was_trained_to(family: Family) -> None:
    """In mlx-lm alone, in every surroundings; and its files are what the program would write."""
    found = check(family, family.folder)
    assert not found.misses, "\n".join(map(str, found.misses))
    assert found.longest > 1300
    written = json.loads((family.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert written == settings(family)
    scripts = json.loads((family.folder / "scripts.json").read_text(encoding="utf-8"))
    assert scripts == family.scripts


async def test_every_question(family: Family, dialects: list[Asker]) -> None:
    """All at once, each whole and streamed: the batch mixes them, and mixes nothing up."""

    async def ask(asker: Asker, question: str) -> tuple[Seen, Seen]:
        asked = Question([user(question)], TOOLS)
        return await asyncio.gather(
            asker.ask(family.name, asked, streamed=False),
            asker.ask(family.name, asked, streamed=True),
        )

    for asker in dialects:
        answers = await asyncio.gather(*(ask(asker, question) for question in family.scripts))
        for question, (whole, streamed) in zip(family.scripts, answers, strict=True):
            assert whole == expected(family, question), (asker.name, question)
            assert streamed == whole, (asker.name, question)
            assert streamed.prompt_tokens == whole.prompt_tokens
            assert len(set(whole.call_ids)) == len(whole.calls)
            assert all(whole.call_ids)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_call_its_result_and_the_answer(
    family: Family, dialects: list[Asker], streamed: bool
) -> None:
    async def both_turns(asker: Asker) -> None:
        turns = [user(WEATHER_IN_PARIS)]
        called = await asker.ask(family.name, Question(turns, TOOLS), streamed=streamed)
        assert called.calls == (WEATHER,), asker.name
        turns = [*turns, *called.said, *asker.results(called, "It is 18 degrees")]
        told = await asker.ask(family.name, Question(turns, TOOLS), streamed=streamed)
        assert told == expected(family, "It is 18 degrees"), asker.name
        assert told.prompt_tokens > called.prompt_tokens

    await asyncio.gather(*map(both_turns, dialects))


async def test_with_none_there_is_no_call(family: Family, dialects: list[Asker]) -> None:
    """The model does not see its tools, and what it writes all the same is no call."""
    bare = Question([user(WEATHER_IN_PARIS)])
    asked = Question([user(WEATHER_IN_PARIS)], TOOLS, "none")

    async def ask(asker: Asker) -> None:
        seen = await asker.ask(family.name, asked, streamed=True)
        assert (seen.calls, seen.reason) == ((), "stop"), asker.name
        assert "Paris" in seen.text
        plain = await asker.ask(family.name, bare, streamed=False)
        assert seen.prompt_tokens == plain.prompt_tokens

    await asyncio.gather(*map(ask, dialects))


@pytest.mark.parametrize("choice", ["required", "get_time"])
async def test_a_call_is_forced(family: Family, dialects: list[Asker], choice: str) -> None:
    """And only that one, where a tool is named; the model would call get_weather."""
    asked = Question([user(WEATHER_IN_PARIS)], FEW_WORDS, choice, most_tokens=100)

    async def ask(asker: Asker) -> None:
        seen = await asker.ask(family.name, asked, streamed=True)
        assert seen.text == "", asker.name
        assert seen.calls, asker.name
        names = {name for name, _ in seen.calls}
        assert names == {choice} if choice in FEW_WORDS else names <= FEW_WORDS.keys()
        for name, arguments in seen.calls:
            jsonschema.validate(arguments, FEW_WORDS[name])

    await asyncio.gather(*map(ask, dialects))


async def test_markers_that_a_user_writes_are_text(
    gateway: Daemon, family: Family, dialects: list[Asker]
) -> None:
    """No turn, call or trace begins in what a user wrote, and the model is not led astray."""
    markers = [*family.special, *family.plain]
    forged = f"{' '.join(markers)} {''.join(markers)} {WEATHER_IN_PARIS}"
    own = control_tokens(family)
    plain, spelled = await tokens(gateway, family, WEATHER_IN_PARIS, forged)
    assert [it for it in spelled if it in own] == [it for it in plain if it in own]
    assert len(spelled) > len(plain) + 4 * len(markers)
    for asker in dialects:
        seen = await asker.ask(family.name, Question([user(forged)], TOOLS), streamed=True)
        assert seen == expected(family, WEATHER_IN_PARIS), asker.name
        assert seen.prompt_tokens == len(spelled)


def control_tokens(family: Family) -> set[int]:
    """The ids of all its markers."""
    file = json.loads((family.folder / "tokenizer.json").read_text(encoding="utf-8"))
    markers = {*family.special, *family.plain}
    return {token["id"] for token in file["added_tokens"] if token["content"] in markers}


async def tokens(gateway: Daemon, family: Family, *questions: str) -> list[list[int]]:
    """The prompt of each question."""
    found = []
    async with gateway.client() as client:
        for question in questions:
            functions = [
                {"type": "function", "function": {"name": name, "parameters": schema}}
                for name, schema in TOOLS.items()
            ]
            body = {"model": family.name, "messages": [user(question)], "tools": functions}
            found.append((await client.post("/tokenize", json=body)).json()["tokens"])
    return found
