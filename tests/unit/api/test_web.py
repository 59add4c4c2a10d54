"""The files of the dashboard, and how they are served."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from gateway.api import web

pytestmark = pytest.mark.anyio

LIMIT = 400
REFERENCE = re.compile(r"""(?:src|href)="([^"#]+)"|from "([^"]+)"|url\(([^)]*)\)""")


def endpoint(app: Any) -> Any:
    """An ASGI function as an application, which `Route` would take for a request handler."""

    class Endpoint:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

    return Endpoint()


def client() -> httpx.AsyncClient:
    app = Starlette(
        routes=[Route("/", endpoint(web.page)), Route("/web/{name}", endpoint(web.asset))]
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_the_page_is_served_safely() -> None:
    async with client() as asking:
        answer = await asking.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}'])
async def test_what_a_browser_has_is_not_sent_again(form: str) -> None:
    async with client() as asking:
        tag = (await asking.get("/web/app.js")).headers["etag"]
        again = await asking.get("/web/app.js", headers={"if-none-match": form.format(tag)})
        other = await asking.get("/web/app.js", headers={"if-none-match": '"other"'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert again.headers["cache-control"] == "no-cache"
    assert other.status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "%2e%2e%2fapp.py", "__init__.py"])
async def test_nothing_else_is_served(name: str) -> None:
    async with client() as asking:
        assert (await asking.get(f"/web/{name}")).status_code == 404


def test_every_file_is_small_and_refers_to_files_that_are_there() -> None:
    files = web.files()
    assert {"index.html", "app.js", "base.css"} <= files.keys()
    for name, file in files.items():
        text = file.data.decode()
        assert text.count("\n") < LIMIT, name
        for groups in REFERENCE.findall(text):
            reference = "".join(groups).removeprefix("/web/").removeprefix("./")
            assert reference in files, (name, reference)


def test_no_file_makes_markup_of_data_or_brings_inline_code() -> None:
    for name, file in web.files().items():
        text = file.data.decode()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (name, word)
        if name.endswith(".html"):
            assert not re.search(r"\son\w+=|\sstyle=|<script>|<style", text), name
