"""Every parsing case over HTTP: a scripted model says its text, and each dialect shows what came
of it, however the text was cut into deltas and whether the answer is streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.daemon import Daemon, daemon, registry, script, scripted
from tests.harness.dialects import Asker, Question, Seen, askers, user
from tests.unit.parsers.answers import ROWS, TOOLS, Row, as_marked, by_size, whole

pytestmark = pytest.mark.anyio

BASE = "base"
MOST_TOKENS = 100_000
CUTS: dict[str, Callable[[str], list[str]]] = {
    "whole": whole,
    "as marked": as_marked,
    "characters": by_size(1),
    "sevens": by_size(7),
}
WAYS = (
    ("chat", "whole", False),
    ("chat", "characters", True),
    ("responses", "sevens", False),
    ("responses", "as marked", True),
    ("messages", "sevens", False),
    ("messages", "as marked", True),
)
"""Dialect, cut, and whether it is streamed."""


def sayable(row: Row) -> bool:
    """Whether a scripted model can say it.

    It shows no format, so `auto` finds none; and its special tokens are those that it says.
    """
    said = {text for text, special in row.pieces(whole) if special}
    return row.tool != "auto" and said >= set(row.spelled) and bool(said) == bool(row.tokens)


SAYABLE = [row for row in ROWS if sayable(row)]


def model_of(row: Row) -> str:
    return f"{row.tool}.{row.reasoning}"


def variant(row: Row) -> dict[str, Any]:
    """The one scripted engine under a name that has this row's parsers."""
    parsers = {"tool_parser": row.tool, "reasoning_parser": row.reasoning}
    named = {key: name for key, name in parsers.items() if name is not None}
    return {"name": model_of(row), "of": BASE, **named}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    base = scripted(BASE, context_length=10 * MOST_TOKENS, max_concurrency=32)
    variants = {model_of(row): variant(row) for row in SAYABLE}
    document = registry(base, *variants.values())
    with daemon(document, tmp_path_factory.mktemp("gateway")) as running:
        yield running


def asked(row: Row, cut: str) -> Question:
    steps: list[Any] = [
        {"token": text} if special else text for text, special in row.pieces(CUTS[cut])
    ]
    thinking = {} if row.thinking is None else {"enable_thinking": row.thinking}
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    return Question(
        [user(script(*steps, prompt_tail=row.prompt, finish=row.finish))],
        schemas if row.tool else {},
        stop=row.stop,
        template_kwargs=thinking,
        most_tokens=MOST_TOKENS,
    )


def expected(row: Row) -> Seen:
    cut = row.finish == "length" and row.stopped is None
    reason = "length" if cut else "tool_calls" if row.calls else "stop"
    return Seen(row.content.strip(), row.trace.strip(), tuple(row.calls), reason)


async def shown(asker: Asker, row: Row, cut: str, *, streamed: bool) -> Seen:
    seen = await asker.ask(model_of(row), asked(row, cut), streamed=streamed)
    return Seen(seen.text.strip(), seen.trace.strip(), seen.calls, seen.reason)


def test_nearly_every_row_can_be_said() -> None:
    unsayable = [row for row in ROWS if not sayable(row)]
    assert len(unsayable) < len(ROWS) / 20, [str(row) for row in unsayable]


@pytest.mark.parametrize("row", SAYABLE, ids=str)
async def test_row(gateway: Daemon, row: Row) -> None:
    async with askers(gateway.url) as known:
        ways = [way for way in WAYS if known[way[0]].stops or not row.stop]
        answers = await asyncio.gather(
            *(shown(known[name], row, cut, streamed=streamed) for name, cut, streamed in ways)
        )
    assert dict(zip(ways, answers, strict=True)) == dict.fromkeys(ways, expected(row))
