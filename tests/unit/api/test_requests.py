"""Which requests an id finds."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.requests import Requests


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
