"""The client of a benchmark against servers that are none, or bad ones."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gateway.bench import contract
from gateway.bench.client import Client
from gateway.bench.contract import CaseResult
from gateway.bench.workload import Case, Workload
from gateway.cli.bench import _only_model


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"data: {not json}\n\n", "malformed"),
        (b"data: [DONE]\n\n", "incomplete"),
        (b'data: {"error": {"code": "no_capacity"}}\n\n', "no_capacity"),
    ],
)
async def test_an_answer_that_is_none_is_a_failed_sample(sent: bytes, error: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"127.0.0.1:{port}") as client:
            sample = await client.chat({"model": "m", "messages": []})
    assert (sample.ok, sample.error) == (False, error)


def test_what_is_no_address_is_said_so() -> None:
    with pytest.raises(ValueError, match="is no address"):
        Client("ftp://somewhere")


GOOD = (
    b'data: {"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.anyio
async def test_a_server_that_goes_away_takes_nothing_with_it_that_was_measured() -> None:
    server: asyncio.Server

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            server.close()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + GOOD)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    workload = Workload("w", tuple(Case(name, {"messages": []}) for name in "ab"))
    results: list[CaseResult] = []
    told: list[str] = []
    how = contract.Run("m", repetitions=1, cache_policy="before-case", metrics=False)
    async with Client(f"http://127.0.0.1:{port}") as client:
        await contract.run(client, workload, how, told.append, results)
    assert [result.verdicts[0].sample.error for result in results] == [None, "unreachable"]
    assert any(line.startswith("the cache was not cleared: nothing answers") for line in told)


class Other:
    """A server that is no gateway."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def get(self, path: str) -> tuple[int, bytes]:
        return 200, self.body


@pytest.mark.anyio
@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": []}'])
async def test_a_server_without_models_to_choose_from_is_said_so(body: bytes) -> None:
    with pytest.raises(ValueError, match="models"):
        await _only_model(cast(Client, Other(body)))
