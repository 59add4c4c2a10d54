"""From headers to what their sender may do."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Forbidden, ModelNotFound
from gateway.registry.schema import ApiKey
from gateway.residency import Priority
from gateway.router import Router
from gateway.security.keys import MAX_CANDIDATES, Access, Keys
from gateway.supervisor.setup import Wish
from tests.harness.in_process import scripted_model

KEYS = Keys(
    [
        ApiKey(name="one", key="sk-1"),
        ApiKey(name="two", key="sk-2", rights=("manage",), priority="low", may_evict=False),
    ]
)


def named(*headers: tuple[str, str], keys: Keys = KEYS) -> str | None:
    found = keys.find({"headers": [(name.encode(), value.encode()) for name, value in headers]})
    return found.name if found else None


def access(**fields: Any) -> Access:
    found = Keys([ApiKey(name="k", key="x", **fields)]).find({"headers": [(b"x-api-key", b"x")]})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ([("authorization", "Bearer sk-1")], "one"),
        ([("authorization", "bearer  sk-2 ")], "two"),
        ([("x-api-key", "sk-2")], "two"),
        ([("authorization", "Bearer wrong"), ("x-api-key", "sk-1")], "one"),
        ([("authorization", "Basic sk-1")], None),
        ([("authorization", "sk-1")], None),
        ([("x-api-key", "sk-")], None),
        ([("x-api-key", "sk-11")], None),
        ([("x-api-key", "")], None),
        ([("authorization", "Bearer")], None),
        ([], None),
        ([("x-api-key", "no")] * MAX_CANDIDATES + [("x-api-key", "sk-1")], None),
    ],
)
def test_which_key_a_request_shows(headers: list[tuple[str, str]], name: str | None) -> None:
    assert named(*headers) == name


def test_a_key_without_text_lets_nobody_in() -> None:
    keys = Keys([ApiKey(name="empty")])
    assert not keys
    assert named(("x-api-key", ""), keys=keys) is None


def test_rights_are_those_that_are_listed() -> None:
    access().demand("infer")
    with pytest.raises(Forbidden, match="no right to manage"):
        access().demand("manage")
    with pytest.raises(Forbidden):
        access(rights=("admin",)).demand("infer")


def test_a_key_sees_its_models_and_is_told_of_no_others() -> None:
    router = Router(
        [
            scripted_model("chat-a"),
            scripted_model("secret", aliases=("chat-s",)),
            scripted_model("z"),
        ]
    )
    assert access().router(router) is router
    seen = access(models=("chat-*",)).router(router)
    assert [model.entry.name for model in seen.models] == ["chat-a", "secret"]
    assert seen.find("chat-a").entry.name == "chat-a"
    with pytest.raises(Forbidden, match="'z'"):
        seen.find("z")
    with pytest.raises(ModelNotFound) as raised:
        access(models=("chat-a",)).router(router).find("secre")
    assert "secret" not in raised.value.message


def test_what_a_key_grants_bounds_what_a_request_wishes() -> None:
    granted = access(priority="low", may_evict=False).wish(Wish(Priority.HIGH, 5))
    assert granted == Wish(Priority.HIGH, 5, may_evict=False, granted=Priority.LOW)
    assert access().wish(Wish(may_evict=False)) == Wish(may_evict=False)


def test_no_text_of_a_key_is_kept_or_shown() -> None:
    assert "sk-1" not in repr(ApiKey(name="one", key="sk-1"))
    assert "sk-1" not in repr(vars(KEYS))
