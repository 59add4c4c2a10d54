"""Images of a request: to files and away again, whatever happens in between."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.api import media
from gateway.api.media import MAX_IMAGES, Images, Media, MediaRef, refuse_images, remove
from gateway.errors import ClientGone, InvalidRequest, Unavailable, Unsupported
from gateway.registry.schema import Server
from gateway.security.media import fetch_media, sweep
from tests.unit.security.test_images import png

pytestmark = pytest.mark.anyio

PNG = png(8, 8)
GOOD = MediaRef(f"data:image/png;base64,{base64.b64encode(PNG).decode()}", "part[0]")
BAD = MediaRef("data:image/png;base64,aGVsbG8=", "part[1]")
TIMEOUT_S = 30


class Client:
    """Is there until it has `left`."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def __call__(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sweep(tmp_path / "media")
    return tmp_path / "media"


def kept(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_what_a_request_may_name() -> None:
    images = Images()
    marks = {images.add(f"data:{number}", f"part[{number}]") for number in range(MAX_IMAGES)}
    assert marks == {"[image]"}
    with pytest.raises(InvalidRequest) as refused:
        images.add("data:,", "part[16]")
    assert refused.value.param == "part[16]"
    assert images.refs[3] == MediaRef("data:3", "part[3]")


def test_a_model_of_text_takes_none() -> None:
    refuse_images((), "words")
    with pytest.raises(Unsupported, match=r"^part\[0\]: the model 'words' takes text") as refused:
        refuse_images((GOOD, BAD), "words")
    assert refused.value.param == "part[0]"


async def test_files_are_there_until_they_are_removed(folder: Path) -> None:
    shown = folder.parent / "shown.png"
    shown.write_bytes(PNG)
    local = MediaRef(shown.as_uri(), "part[1]")
    server = Server(media_roots=(str(folder.parent),))
    files = await Media(folder).fetch((GOOD, local), server, Client())
    assert [file.path.read_bytes() for file in files] == [PNG, PNG]
    assert kept(folder) == 2
    remove(files)
    assert not kept(folder)
    with pytest.raises(InvalidRequest) as refused:
        await Media(folder).fetch((GOOD, local), Server(), Client())
    assert refused.value.param == "part[1]"
    assert not kept(folder)


async def test_one_that_cannot_be_had_takes_the_others_with_it(folder: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await Media(folder).fetch((GOOD, BAD), Server(), Client())
    assert refused.value.param == "part[1]"
    assert not kept(folder)


class Endless:
    """Fetches the first image and waits for the second for ever."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.ended = False

    async def __call__(self, url: str, *rest: Any) -> Any:
        if url == GOOD.url:
            return await fetch_media(url, *rest)
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    fetch = Endless()
    monkeypatch.setattr(media, "fetch_media", fetch)
    return fetch


async def test_a_client_that_leaves_ends_it(folder: Path, endless: Endless) -> None:
    client = Client()
    fetching = asyncio.ensure_future(Media(folder).fetch((GOOD, BAD), Server(), client))
    async with asyncio.timeout(TIMEOUT_S):
        await endless.waiting.wait()
        assert kept(folder) == 1
        client.left.set()
        with pytest.raises(ClientGone):
            await fetching
    assert endless.ended
    assert not kept(folder)


async def test_a_request_that_is_ended_leaves_nothing(folder: Path, endless: Endless) -> None:
    fetching = asyncio.ensure_future(Media(folder).fetch((GOOD, BAD), Server(), Client()))
    async with asyncio.timeout(TIMEOUT_S):
        await endless.waiting.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    assert endless.ended
    assert not kept(folder)


async def test_all_of_them_have_one_time(
    folder: Path, endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "TOGETHER_S", 0.2)
    with pytest.raises(InvalidRequest, match="took longer than") as refused:
        await Media(folder).fetch((GOOD, BAD), Server(), Client())
    assert refused.value.param == "part[1]"
    assert endless.ended
    assert not kept(folder)


async def test_without_a_folder_it_says_so(tmp_path: Path) -> None:
    for unable in (Media(None), Media(tmp_path / "gone")):
        with pytest.raises(Unavailable, match=r"^part\[0\]: the gateway"):
            await unable.fetch((GOOD,), Server(), Client())
        assert await unable.fetch((), Server(), Client()) == ()
