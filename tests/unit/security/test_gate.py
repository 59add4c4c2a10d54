"""Who gets past the gate, and that a reload counts at once."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import RateLimited, Unauthorized
from gateway.registry.schema import ApiKey, Server
from gateway.security.gate import Gate
from gateway.security.keys import LOCAL, NOBODY, WATCHER


class Settings:
    """Server settings that a test replaces, as a reload does."""

    def __init__(self, **settings: Any) -> None:
        self.now = Server(**settings)

    def __call__(self) -> Server:
        return self.now


def request(path: str = "/v1/models", key: str = "", client: str = "127.0.0.1") -> dict[str, Any]:
    headers = [(b"x-api-key", key.encode())] if key else []
    return {"method": "GET", "path": path, "headers": headers, "client": (client, 5)}


def test_without_keys_this_machine_has_every_right() -> None:
    assert Gate(Settings()).admit(request()) is LOCAL


def test_without_keys_others_have_none_even_on_an_open_listener() -> None:
    with pytest.raises(Unauthorized, match="its own machine"):
        Gate(Settings()).admit(request(client="10.0.0.9"))
    assert Gate(Settings(allow_insecure=True)).admit(request(client="10.0.0.9")) is LOCAL


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_probes_need_no_key(path: str) -> None:
    assert Gate(Settings(api_keys=(ApiKey(name="a", key="k"),))).admit(request(path)) is NOBODY


@pytest.mark.parametrize("path", ["/metrics", "/v1/status"])
def test_one_setting_opens_the_measures(path: str) -> None:
    keys = (ApiKey(name="a", key="k"),)
    with pytest.raises(Unauthorized, match=r"server\.metrics_auth"):
        Gate(Settings(api_keys=keys)).admit(request(path))
    assert Gate(Settings(api_keys=keys)).admit(request(path, "k")).name == "a"
    assert Gate(Settings(api_keys=keys, metrics_auth=False)).admit(request(path)) is WATCHER


def test_a_reload_replaces_the_keys_and_keeps_what_was_counted() -> None:
    settings = Settings(api_keys=(ApiKey(name="a", key="k", rate_limit=1),))
    gate = Gate(settings)
    gate.demand(gate.admit(request(key="k")), "infer", True)
    settings.now = Server(api_keys=(ApiKey(name="a", key="new", rate_limit=1),))
    with pytest.raises(Unauthorized):
        gate.admit(request(key="k"))
    access = gate.admit(request(key="new"))
    with pytest.raises(RateLimited) as raised:
        gate.demand(access, "infer", True)
    assert 0 < (raised.value.retry_after_s or 0) <= 60
    gate.demand(access, None, False)
