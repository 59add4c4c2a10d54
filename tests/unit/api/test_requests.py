"""Which requests an id finds, and which are listed for whom."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest

from gateway.api.requests import Requests
from gateway.security.keys import LOCAL, Access


def state(request_id: str) -> dict[str, Any]:
    return {"request_id": request_id, "key": None}


@pytest.mark.parametrize("asked", ["my.id-1_x", "a", "x" * 128])
def test_a_safe_id_is_taken_over(asked: str) -> None:
    assert Requests().name(asked) == asked


@pytest.mark.parametrize("asked", [None, "", "a b", "a/b", "ü", "x" * 129, "a\n"])
def test_any_other_is_replaced(asked: str | None) -> None:
    assert Requests().name(asked).startswith("req_")


def test_an_id_in_use_is_not_given_twice_and_is_free_afterwards() -> None:
    requests = Requests()
    with requests.running(state("a")):
        assert requests.name("a") != "a"
        assert requests.name("req_a") != "req_a"
    assert requests.name("a") == "a"
    assert len(requests) == 0


@pytest.mark.parametrize("asked", ["req_a-1", "a-1", "chatcmpl-a-1", "msg_a-1", "cmpl-a-1"])
def test_ids_that_find_a_request(asked: str) -> None:
    requests = Requests()
    with requests.running(state("req_a-1")):
        found = requests.find(asked)
        assert found is not None
        assert found["request_id"] == "req_a-1"
        assert requests.find("req_1") is None


async def listed(requests: Requests, access: Access) -> list[dict[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    await requests.index({"state": {"access": access}}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    lines: list[dict[str, Any]] = msgspec.json.decode(body)["data"]
    return lines


@pytest.mark.anyio
async def test_those_are_listed_that_the_sender_may_end() -> None:
    requests = Requests()
    known = {"route": "/v1/chat/completions", "model": "a", "cancel": lambda error: None}
    guest = Access("guest", frozenset({"infer"}), ("*",))
    mine = {**state("req_mine"), **known, "key": "guest", "ttft_s": 0.5}
    other = {**state("req_other"), **known, "key": "other"}
    with requests.running(mine), requests.running(other), requests.running(state("req_probe")):
        assert [line["id"] for line in await listed(requests, LOCAL)] == ["req_mine", "req_other"]
        (line,) = await listed(requests, guest)
        assert (line["id"], line["model"], line["ttft_s"]) == ("req_mine", "a", 0.5)
        assert line["since"] == pytest.approx(mine["since"], abs=0.001)
    assert await listed(requests, LOCAL) == []
