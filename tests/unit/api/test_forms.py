"""Multipart forms: the same, however they are cut on their way, and bounded in every direction."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gateway.api.forms import (
    MAX_FIELD_BYTES,
    MAX_PARTS,
    FormParser,
    boundary_of,
    single_values,
)
from gateway.errors import InvalidRequest
from tests.harness.forms import BOUNDARY, CONTENT_TYPE, form

FILE = bytes(range(256)) + f"\r\n--{BOUNDARY[:-1]}\r\n--{BOUNDARY}".encode()[:-1] + b"\r\n\r\n-"
BODY = form(
    ("model", "ears"),
    ("prompt", "ünïcode\r\nand two lines"),
    ("file", FILE, "speech.wav"),
    ("timestamp_granularities[]", "word"),
    ("timestamp_granularities[]", "segment"),
    ("empty", ""),
    ("other", b"another file", "notes.txt"),
)
FIELDS = {
    "model": ["ears"],
    "prompt": ["ünïcode\r\nand two lines"],
    "timestamp_granularities[]": ["word", "segment"],
    "empty": [""],
}


def parsed(chunks: Iterable[bytes]) -> tuple[dict[str, list[str]], bytes]:
    parser = FormParser(BOUNDARY.encode())
    file = b""
    for chunk in chunks:
        parser.feed(chunk)
        assert parser.pending <= len(chunk) + len(BOUNDARY) + 8
        file += parser.take()
    parser.finish()
    assert parser.has_file
    return parser.fields, file


@pytest.mark.parametrize("seed", range(20))
def test_cuts_do_not_matter(seed: int) -> None:
    cuts = sorted(random.Random(seed).choices(range(len(BODY)), k=seed * 3))
    pieces = [BODY[a:b] for a, b in zip([0, *cuts], [*cuts, len(BODY)], strict=True)]
    assert parsed(pieces) == (FIELDS, FILE)


def test_byte_by_byte() -> None:
    assert parsed(bytes([byte]) for byte in BODY) == (FIELDS, FILE)


def test_a_file_without_a_file_name_is_one() -> None:
    assert parsed([form(("file", b"RIFF"))]) == ({}, b"RIFF")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "cut off"),
        (BODY[:-8], "cut off"),
        (BODY[:300], "cut off"),
        (b"no form at all", "malformed"),
        (f"--{BOUNDARY}\r\nno header\r\n\r\n".encode(), "malformed"),
        (f"--{BOUNDARY}\r\nX-Other: 1\r\n\r\nx\r\n--{BOUNDARY}--\r\n".encode(), "has no name"),
        (f"--{BOUNDARY}\r\nX-A: {'a' * 9000}\r\n\r\n".encode(), "malformed"),
        (form(("file", b"1", "a"), ("file", b"2", "b")), "file: there is more than one"),
        (form(("prompt", "a" * (MAX_FIELD_BYTES + 1))), "prompt: longer than 64 KiB"),
        (form(("prompt", b"\xff\xfe")), "prompt is not valid UTF-8"),
        (form(*[("a", "")] * (MAX_PARTS + 1)), "more than 64 parts"),
    ],
)
def test_what_is_refused(body: bytes, message: str) -> None:
    parser = FormParser(BOUNDARY.encode())
    with pytest.raises(InvalidRequest, match=message):
        _whole(parser, body)


def _whole(parser: FormParser, body: bytes) -> None:
    parser.feed(body)
    parser.finish()


def test_a_field_of_the_most_bytes_passes() -> None:
    parser = FormParser(BOUNDARY.encode())
    _whole(parser, form(("prompt", "a" * MAX_FIELD_BYTES), *[("b", "")] * (MAX_PARTS - 1)))
    assert len(parser.fields["prompt"][0]) == MAX_FIELD_BYTES


def test_boundaries() -> None:
    assert boundary_of(CONTENT_TYPE) == BOUNDARY.encode()
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    for wrong in (None, "", "multipart/form-data", "application/json", "text/plain; boundary=x"):
        with pytest.raises(InvalidRequest, match="multipart/form-data"):
            boundary_of(wrong)


def test_values_are_single_but_for_lists() -> None:
    fields = {"model": ["m"], "a[]": ["1", "", "2"], "a": ["3"], "b": [""]}
    assert single_values(fields, frozenset({"a"})) == {"model": "m", "a": ["1", "2", "3"]}
    with pytest.raises(InvalidRequest) as error:
        single_values({"model": ["m", "n"]}, frozenset())
    assert error.value.param == "model"
