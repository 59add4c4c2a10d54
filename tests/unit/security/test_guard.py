"""What browsers can be made to send, header by header."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import HostNotAllowed, OriginNotAllowed, UnsupportedMediaType
from gateway.registry.schema import ApiKey, Server
from gateway.security import guard


def request(method: str = "POST", /, **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"method": method, "headers": pairs, "server": ("10.0.0.7", 8000), "scheme": "http"}
    return scope | {"path": "/v1/chat/completions"}


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:8000", "LOCALHOST", "localhost.", "127.0.0.1:1", "[::1]:8000", "[::1]"),
        *("host.docker.internal:8000", "10.0.0.7:8000", "192.0.2.1", "ai.lan"),
    ],
)
def test_hosts_that_are_answered(host: str) -> None:
    guard.check_host(request(host=host), Server(host="192.0.2.1", hosts=("AI.lan",)))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8000",
        "10.0.0.8",
        "",
        "[::2]",
    ],
)
def test_hosts_that_are_not(host: str) -> None:
    with pytest.raises(HostNotAllowed, match=r"server\.hosts"):
        guard.check_host(request(host=host), Server())


def test_the_names_of_this_machine_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Studio.lan")
    guard._machine_names.cache_clear()
    for host in ("studio", "studio.lan:8000", "studio.local"):
        guard.check_host(request(host=host), Server())
    guard._machine_names.cache_clear()


def test_a_request_without_a_host_is_no_browsers() -> None:
    guard.check_host(request(), Server())


@pytest.mark.parametrize(
    ("origin", "host", "answered"),
    [
        ("http://localhost:8000", "localhost:8000", None),
        ("https://LOCALHOST:8000", "localhost:8000", None),
        ("https://chat.example", "localhost:8000", "https://chat.example"),
    ],
)
def test_origins_that_are_answered(origin: str, host: str, answered: str | None) -> None:
    server = Server(cors_origins=("https://chat.example/",))
    assert guard.check_origin(request(origin=origin, host=host), server) == answered


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost:3000",
        "http://[",
        "https://chat.example.evil",
        "",
    ],
)
def test_origins_that_are_not(origin: str) -> None:
    server = Server(cors_origins=("https://chat.example",))
    with pytest.raises(OriginNotAllowed):
        guard.check_origin(request(origin=origin, host="localhost:8000"), server)


def test_every_origin_may_be_allowed() -> None:
    assert guard.check_origin(request(origin="null"), Server(cors_origins=("*",))) == "null"


def test_a_preflight_is_told_what_its_page_may_send() -> None:
    asked = request(
        "OPTIONS",
        origin="https://chat.example",
        access_control_request_method="POST",
        access_control_request_headers="authorization,content-type",
    )
    assert guard.is_preflight(asked)
    assert dict(guard.preflight_headers(asked))[b"access-control-allow-headers"] == (
        b"authorization,content-type"
    )
    assert not guard.is_preflight(request("OPTIONS", origin="https://chat.example"))


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
)
def test_json_bodies_pass(kind: str) -> None:
    guard.check_content_type(request(content_type=kind, content_length="5"))


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"]
)
def test_other_bodies_do_not(kind: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="Content-Type: application/json"):
        guard.check_content_type(request(content_type=kind, content_length="5"))


@pytest.mark.parametrize("path", sorted(guard.FORM_PATHS))
def test_routes_that_take_files_take_forms_alone(path: str) -> None:
    form = "multipart/form-data; boundary=x"
    guard.check_content_type(request(content_type=form, content_length="5") | {"path": path})
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        with pytest.raises(UnsupportedMediaType, match="multipart/form-data"):
            guard.check_content_type(request(content_type=kind) | {"path": path})


def test_what_has_no_body_needs_no_type() -> None:
    guard.check_content_type(request("GET", content_type="text/plain"))
    guard.check_content_type(request(content_type="text/plain", content_length="0"))
    guard.check_content_type(request())


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *(("localhost", True), ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True)),
        *(("::ffff:127.0.0.1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.7", False)),
        *(("::ffff:10.0.0.7", False), ("studio.local", False), ("", False)),
    ],
)
def test_what_only_this_machine_reaches(host: str, local: bool) -> None:
    assert guard.is_loopback(host) is local
    assert guard.needs_keys(Server(host=host or " ")) is not local


def test_keys_or_the_operators_word_open_a_listener_to_others() -> None:
    assert not guard.needs_keys(Server(host="0.0.0.0", allow_insecure=True))
    assert not guard.needs_keys(Server(host="0.0.0.0", api_keys=(ApiKey(name="a", key="b"),)))
