"""Log lines: forms, the ring, followers, what engines say, files that keep within a size."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.logs.files import ENGINE, MOST_OPEN, LogFiles, Rotation, engine_file
from gateway.logs.lines import MAX_CHARACTERS, Formatter, Line, line_of
from gateway.logs.ring import BookHandler, LogBook, Wanted
from gateway.logs.setup import Logging

pytestmark = pytest.mark.anyio


def record(
    message: str, *args: object, level: int = logging.INFO, **fields: object
) -> logging.LogRecord:
    made = logging.LogRecord("gateway.requests", level, __file__, 1, message, args, None)
    if fields:
        made.fields = fields
    return made


def line(text: str, model: str | None = None, level: str = "INFO") -> Line:
    return Line(0.0, level, "test", text, model)


@given(st.text(), st.text())
def test_json_is_one_valid_line_whatever_is_said(text: str, value: str) -> None:
    said = Formatter("json").format(record("%s", text, model="m", note=value, at="forged"))
    assert "\n" not in said
    document = json.loads(said)
    assert document["level"] == "INFO"
    assert (
        document["note"] == value.encode("utf-8", "replace").decode() or document["note"] == value
    )
    assert document["at"] != "forged"
    assert document["model"] == "m"


def test_lone_surrogates_do_not_break_the_log() -> None:
    said = json.loads(Formatter("json").format(record("\ud800", note="\udfff")))
    assert (said["message"], said["note"]) == ("?", "?")


def test_a_traceback_is_part_of_the_line() -> None:
    made = record("it failed", level=logging.ERROR)
    try:
        raise ValueError("why")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    found = line_of(made)
    assert found.level == "ERROR"
    assert found.line.startswith("it failed\nTraceback")
    assert found.line.endswith("ValueError: why")


def test_long_lines_are_cut() -> None:
    found = line_of(record("x" * 100_000))
    assert len(found.line) < MAX_CHARACTERS + 20
    assert found.line.endswith("(cut)")


# --- the ring -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 500), max_size=50))
def test_the_ring_keeps_within_its_bytes(sizes: list[int]) -> None:
    book = LogBook(limit=5_000)
    for number, size in enumerate(sizes):
        book.add(line(f"{number} " + "x" * size))
    kept = book.tail(Wanted(), 1000)
    assert sum(300 + 2 * len(each.line) for each in kept) <= 5_000
    numbers = [int(each.line.split()[0]) for each in kept]
    assert numbers == list(range(len(sizes)))[len(sizes) - len(numbers) :]


def test_lines_are_chosen_by_model_level_and_count() -> None:
    book = LogBook()
    for each in (line("1"), line("2", "a"), line("3", "b"), line("4", "a", "ERROR"), line("5")):
        book.add(each)

    def chosen(wanted: Wanted, count: int = 10) -> str:
        return "".join(each.line for each in book.tail(wanted, count))

    assert chosen(Wanted()) == "12345"
    assert chosen(Wanted(), 2) == "45"
    assert chosen(Wanted("a")) == "24"
    assert chosen(Wanted(level=40)) == "4"
    assert chosen(Wanted("b", 40)) == ""


def test_followers_hear_what_they_want_until_they_leave() -> None:
    book = LogBook()
    heard: list[str] = []
    leave = book.follow(Wanted("a"), lambda each: heard.append(each.line))
    book.add(line("1", "a"))
    book.add(line("2", "b"))
    leave()
    leave()
    book.add(line("3", "a"))
    assert heard == ["1"]
    assert book.followers == 0


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_what_an_engine_says_is_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    whole, pieces = LogBook(), LogBook()
    expected = whole.heard("m", 0, data) + whole.ended("m", 0)
    at = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    found: list[str] = []
    for begin, end in itertools.pairwise(at):
        found += pieces.heard("m", 0, data[begin:end])
    assert found + pieces.ended("m", 0) == expected


def test_an_engine_without_line_ends_costs_a_bounded_amount() -> None:
    book = LogBook()
    for _ in range(100):
        book.heard("m", 0, b"x" * 50_000)
    assert all(len(each.line) < MAX_CHARACTERS + 20 for each in book.tail(Wanted(), 1000))


async def test_other_threads_are_heard_too() -> None:
    book = LogBook()
    handler = BookHandler(book, asyncio.get_running_loop())
    arrived = asyncio.Event()
    book.follow(Wanted(), lambda _: arrived.set())
    threading.Thread(target=handler.emit, args=[record("from elsewhere")]).start()
    await asyncio.wait_for(arrived.wait(), 30)
    assert [each.line for each in book.tail(Wanted(), 5)] == ["from elsewhere"]


# --- files ----------------------------------------------------------------------------------------


def test_files_are_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    files, path = LogFiles(), tmp_path / "new" / "x.log"
    for number in range(100):
        files.write(path, Rotation(100, 2), f"line {number:03}")
    files.close()
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["x.log", "x.log.1", "x.log.2"]
    assert all(each.stat().st_size <= 100 for each in path.parent.iterdir())
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in path.parent.iterdir())
    text = "".join((path.parent / name).read_text() for name in reversed(names))
    assert (
        text.splitlines()
        == [f"line {number:03}" for number in range(100)][-len(text.splitlines()) :]
    )
    assert files.lost == 0


def test_a_disk_that_takes_nothing_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = LogFiles()
    files.write(tmp_path / "file" / "x.log", Rotation(100, 1), "lost")
    files.close()
    assert files.lost == 1


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("qwen3", "qwen3.log"),
        ("org/model", "org_model.log"),
        ("..", "model.log"),
        ("a b", "a_b.log"),
    ],
)
def test_names_of_models_are_no_paths(model: str, name: str) -> None:
    assert engine_file(Path("/logs"), model) == Path("/logs", name)


async def test_the_whole_of_it(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    logs = Logging(tmp_path / "engines")
    logs.begin(tmp_path / "gateway.log", "text")
    try:
        logging.getLogger("gateway").warning("as text")
        logs.use("json")
        logging.getLogger("gateway").warning("as json", extra={"fields": {"model": "m"}})
        logs.heard("m", b"engine says\nand more")
        logs.heard("m", b"")
    finally:
        logs.close()
    assert root.handlers == before
    text, document = (tmp_path / "gateway.log").read_text().splitlines()
    assert text.endswith("WARNING gateway as text")
    assert json.loads(document)["message"] == "as json"
    engine = (tmp_path / "engines" / "m.log").read_text().splitlines()
    assert [each.split(" ", 2)[2] for each in engine] == ["engine says", "and more"]
    shown = [each.line for each in logs.book.tail(Wanted("m"), 10)]
    assert shown == ["as json", "engine says", "and more"]


async def test_a_line_that_cannot_be_told_harms_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Logging(tmp_path / "engines")
    logs.begin(tmp_path / "gateway.log", "json")
    try:
        logging.getLogger("gateway").warning("%d of them", "many")
    finally:
        logs.close()
    assert "Logging error" in capsys.readouterr().err


def test_what_is_no_text_can_be_told_to_whoever_looks() -> None:
    found = line_of(record("cannot read /models/\udcff"))
    assert found.line == "cannot read /models/?"


def test_files_of_models_that_come_and_go_do_not_stay_open(tmp_path: Path) -> None:
    logs = LogFiles()
    paths = [engine_file(tmp_path, f"model-{number}") for number in range(MOST_OPEN + 5)]
    for path in (*paths, paths[0]):
        logs._append(path, ENGINE, b"a line\n")  # as its thread does
    assert len(logs._open) == MOST_OPEN
    assert [path.read_text() for path in paths] == ["a line\n" * 2] + ["a line\n"] * len(paths[1:])
    logs.close()
    for path in list(logs._open):
        logs._forget(path)
