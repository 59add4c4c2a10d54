"""What is kept of responses, for how long, and for whom."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from gateway.api.responses_store import OVERHEAD_BYTES, Log, MemoryStore, Stored
from gateway.errors import NotFound


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stored(response_id: str, said: str = "", **fields: Any) -> Stored:
    """A response to one item, `<id>_in`, with one item, `<id>_out`."""
    user = {"id": f"{response_id}_in", "type": "message", "role": "user", "content": said}
    model = {"id": f"{response_id}_out", "type": "message", "role": "assistant", "content": []}
    return Stored(
        id=response_id,
        owner=fields.pop("owner", "me"),
        response=msgspec.json.encode({"id": response_id, "output": [model]}),
        items=msgspec.json.encode([user]),
        **fields,
    )


class Notes(list[str]):
    """A mirror that only writes down what it hears."""

    def put(self, stored: Stored) -> None:
        self.append(f"put {stored.id}")

    def delete(self, response_id: str) -> None:
        self.append(f"delete {response_id}")


def store(
    *kept: Stored, max_bytes: int = 2**20, ttl_s: float = 60, mirror: Notes | None = None
) -> tuple[MemoryStore, Clock]:
    clock = Clock()
    made = MemoryStore(clock, max_bytes, ttl_s, mirror)
    for one in kept:
        made.put(one)
    return made, clock


def test_what_is_kept_is_found_and_deleted() -> None:
    first = stored("a")
    kept, _ = store(first)
    assert kept.get("a", "me") is first
    assert kept.get("b", "me") is None
    assert kept.delete("a", "me")
    assert not kept.delete("a", "me")
    assert (kept.get("a", "me"), kept.item("a_in", "me"), kept.size_bytes) == (None, None, 0)


def test_nobody_else_knows_of_it() -> None:
    kept, _ = store(stored("a"))
    assert kept.get("a", "you") is None
    assert kept.item("a_in", "you") is None
    assert not kept.delete("a", "you")
    with pytest.raises(NotFound):
        kept.turns("a", "you")
    assert kept.get("a", "me") is not None


def test_what_has_not_been_used_for_the_longest_time_makes_room() -> None:
    size = stored("a").size_bytes
    kept, _ = store(stored("a"), stored("b"), max_bytes=2 * size)
    kept.get("a", "me")
    kept.put(stored("c"))
    assert [name for name in "abc" if kept.get(name, "me")] == ["a", "c"]
    assert kept.size_bytes == 2 * size


def test_what_is_larger_than_all_the_room_is_not_kept() -> None:
    size = stored("a").size_bytes
    kept, _ = store(stored("a"), max_bytes=size)
    kept.put(stored("b", "x" * OVERHEAD_BYTES))
    assert (kept.get("b", "me"), kept.get("a", "me") is not None) == (None, True)


def test_time_ends_what_nobody_uses() -> None:
    kept, clock = store(stored("a"), stored("b"), ttl_s=60)
    clock.now = 50.0
    assert kept.get("a", "me") is not None
    clock.now = 60.0
    assert (kept.get("b", "me"), len(kept)) == (None, 1)
    clock.now = 109.0
    assert kept.get("a", "me") is not None
    clock.now = 169.0
    assert (kept.get("a", "me"), kept.size_bytes) == (None, 0)


def test_a_new_version_replaces_the_old_one() -> None:
    kept, _ = store(stored("a", "x" * 100))
    kept.put(stored("a"))
    assert (len(kept), kept.size_bytes) == (1, stored("a").size_bytes)
    assert kept.item("a_in", "me") is not None


def test_an_item_is_found_in_the_latest_response_that_has_it() -> None:
    again = dataclasses.replace(stored("b"), items=stored("a", "now").items)
    kept, _ = store(stored("a", "then"), again)
    item = kept.item("a_in", "me")
    assert item is not None
    assert (item.id, item.content) == ("a_in", "now")
    kept.delete("a", "me")
    assert kept.item("a_in", "me") is not None
    assert kept.item("a_out", "me") is None
    assert kept.item("none", "me") is None


def test_turns_go_back_to_the_beginning() -> None:
    kept, _ = store(stored("a"), stored("b", previous="a"), stored("c", previous="b"))
    ids = [f"{name}_{side}" for name in "abc" for side in ("in", "out")]
    assert [item.id for item in kept.turns("c", "me")] == ids
    kept.delete("a", "me")
    with pytest.raises(NotFound, match="'a', which 'c' goes back to") as failed:
        kept.turns("c", "me")
    assert failed.value.param == "previous_response_id"


def test_continuing_a_response_keeps_all_that_it_goes_back_to() -> None:
    kept, clock = store(stored("a"), stored("b", previous="a"), ttl_s=60)
    clock.now = 59.0
    kept.turns("b", "me")
    clock.now = 118.0
    assert len(kept.turns("b", "me")) == 4


def test_a_log_knows_what_it_has_lost() -> None:
    log = Log(3, (b"3", b"4", b"5"))
    assert log.after(2) == (b"3", b"4", b"5")
    assert log.after(4) == (b"5",)
    assert log.after(9) == ()
    assert log.after(1) is None
    assert stored("a", log=log).size_bytes == stored("a").size_bytes + 3


def test_a_mirror_hears_of_everything_that_changes() -> None:
    mirror, size = Notes(), stored("a").size_bytes
    kept, clock = store(stored("a"), stored("b"), stored("c"), max_bytes=2 * size, mirror=mirror)
    kept.delete("b", "me")
    clock.now = 60.0
    assert kept.get("c", "me") is None
    assert mirror == ["put a", "put b", "put c", "delete a", "delete b", "delete c"]


def test_what_a_mirror_had_goes_on_ageing() -> None:
    mirror = Notes()
    kept, clock = store(ttl_s=60, mirror=mirror)
    for name, age_s in (("a", 70.0), ("b", 50.0), ("c", 0.0)):
        kept.restore(stored(name), age_s)
    assert mirror == ["delete a"]
    clock.now = 10.0
    assert [name for name in "abc" if kept.get(name, "me")] == ["c"]
