"""Media of a request: to files and away again, whatever happens in between."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from engines import wire
from gateway.api import media
from gateway.api.media import (
    MOST,
    Attachments,
    Gathered,
    Media,
    MediaRef,
    refuse_media,
    remove,
    taken_by,
)
from gateway.errors import (
    Cancelled,
    ClientGone,
    GatewayError,
    InvalidRequest,
    Unavailable,
    Unsupported,
)
from gateway.registry.find import Model
from gateway.registry.schema import Entry, Kind, Server
from gateway.security.containers import MediaKind
from gateway.security.media import MediaFile, fetch_media, sweep
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


@pytest.mark.parametrize(("kind", "most"), MOST.items())
def test_what_a_request_may_name(kind: MediaKind, most: int) -> None:
    attachments = Attachments()
    parts = [attachments.add(f"data:{n}", f"part[{n}]", kind) for n in range(most)]
    assert parts == [{"type": kind, "media": n} for n in range(most)]
    with pytest.raises(InvalidRequest, match=f"can hold {most} ") as refused:
        attachments.add("data:,", f"part[{most}]", kind)
    assert refused.value.param == f"part[{most}]"
    assert attachments.refs[3] == MediaRef("data:3", "part[3]", kind)
    with pytest.raises(InvalidRequest, match="needs an address"):
        Attachments().add(None, "part[0]", kind)


READY = wire.Ready(1, wire.Memory(), modalities=("text", "image", "audio"))


@pytest.mark.parametrize(
    ("kind", "ready", "takes"),
    [
        ("text", None, ("text",)),
        ("text", READY, ("text",)),
        ("vision", None, ("text", "image", "video")),
        ("vision", READY, ("text", "image", "audio")),
    ],
)
def test_what_a_model_takes(kind: Kind, ready: wire.Ready | None, takes: Any) -> None:
    assert taken_by(Model(entry=Entry(name="a", path="/m", kind=kind)), ready) == takes


def test_what_a_model_does_not_take_is_refused_by_its_part() -> None:
    refuse_media((), "words", ("text",))
    refuse_media((GOOD,), "eyes", ("text", "image"))
    with pytest.raises(
        Unsupported, match=r"^part\[0\]: the model 'words' takes no image"
    ) as refused:
        refuse_media((GOOD, BAD), "words", ("text",))
    assert refused.value.param == "part[0]"
    with pytest.raises(Unsupported, match="set audio_transcriber"):
        refuse_media((MediaRef("data:,", "part[0]", "audio"),), "eyes", ("text", "image"))


def file(name: str) -> MediaFile:
    return MediaFile(Path("/media") / name, f"type/{name}", 3, f"sha-{name}")


def media_part(kind: str, index: int) -> dict[str, Any]:
    return {"type": kind, "media": index}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_what_was_heard_stands_as_text_where_it_was() -> None:
    kinds: tuple[MediaKind, ...] = ("image", "audio", "image")
    gathered = Gathered(
        tuple(MediaRef("data:,", f"part[{n}]", kind) for n, kind in enumerate(kinds)),
        (file("a"), file("b"), file("c")),
        {1: "hello"},
    )
    asked = wire.Generate(
        1,
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [media_part("image", 0), text_part("hear: ")]},
            {"role": "user", "content": [text_part("hear: "), media_part("audio", 1)]},
            {"role": "user", "content": [media_part("image", 2)]},
            {"role": "assistant", "tool_calls": []},
        ],
    )
    told = gathered.into(asked)
    assert isinstance(told, wire.Generate)
    assert [each.path for each in told.media] == ["/media/a", "/media/c"]
    assert told.media[0] == wire.Media("image", "/media/a", "type/a", 3, "sha-a")
    assert told.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [media_part("image", 0), text_part("hear: ")]},
        {"role": "user", "content": "hear: hello"},
        {"role": "user", "content": [media_part("image", 1)]},
        {"role": "assistant", "tool_calls": []},
    ]
    assert Gathered().into(asked) is asked


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


async def test_a_request_that_is_cancelled_meanwhile_says_so(
    folder: Path, endless: Endless
) -> None:
    ended: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()
    fetching = asyncio.ensure_future(Media(folder).fetch((GOOD, BAD), Server(), Client(), ended))
    async with asyncio.timeout(TIMEOUT_S):
        await endless.waiting.wait()
        ended.set_result(Cancelled("by id"))
        with pytest.raises(Cancelled, match="by id"):
            await fetching
    assert endless.ended
    assert not kept(folder)


async def test_together_they_have_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "TOGETHER_BYTES", 2 * len(PNG))
    files = await Media(folder).fetch((GOOD, GOOD), Server(), Client())
    remove(files)
    again = MediaRef(GOOD.url, "part[2]")
    with pytest.raises(InvalidRequest, match="bytes together") as refused:
        await Media(folder).fetch((GOOD, GOOD, again), Server(), Client())
    assert refused.value.param == "part[2]"
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
