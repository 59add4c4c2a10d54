from __future__ import annotations

import io

import pytest

from demo.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def percentages(text: str) -> list[int]:
    return [int(line.split("]")[1].rstrip(" %")) for line in text.splitlines() if line]


def test_a_terminal_gets_one_line_redrawn_in_place() -> None:
    out = Terminal()
    with Progress("load", 200, out) as progress:
        progress.update(100)
        progress.update(200)
    frames = out.getvalue().split("\r")
    assert frames == [
        "",
        f"load [{'.' * 24}]   0 %",
        f"load [{'#' * 12}{'.' * 12}]  50 %",
        f"load [{'#' * 24}] 100 %\n",
    ]


def test_a_terminal_is_written_to_once_per_whole_per_cent() -> None:
    out = Terminal()
    with Progress("load", 10_000, out) as progress:
        for done in range(10_001):
            progress.update(done)
    assert out.getvalue().count("\r") == 101


def test_elsewhere_a_line_is_written_every_twenty_per_cent() -> None:
    out = io.StringIO()
    with Progress("load", 1000, out) as progress:
        for done in range(1001):
            progress.update(done)
    assert percentages(out.getvalue()) == [0, 20, 40, 60, 80, 100]
    assert "\r" not in out.getvalue()


@pytest.mark.parametrize(
    ("total", "updates", "shown"),
    [
        (100, [60, 20, 60], [0, 60]),
        (100, [250], [0, 100]),
        (100, [-5], [0]),
        (0, [0, 1], [0, 100]),
        (3, [1, 2, 3], [0, 20, 60, 100]),
    ],
    ids=["never goes back", "never passes the end", "never below zero", "total 0", "rounds down"],
)
def test_what_is_shown(total: int, updates: list[int], shown: list[int]) -> None:
    out = io.StringIO()
    with Progress("load", total, out) as progress:
        for done in updates:
            progress.update(done)
    assert percentages(out.getvalue()) == shown


def test_work_that_fails_is_not_shown_as_finished() -> None:
    out = Terminal()

    def fail() -> None:
        with Progress("load", 100, out) as progress:
            progress.update(40)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert out.getvalue().endswith(" 40 %\n")
