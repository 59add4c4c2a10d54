"""The generated parts of the pages: that they are up to date, and how they are made."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from docs import generate
from docs.generate import BadPage, filled, stale
from docs.tables import TABLES, codes, table
from gateway import cli, errors
from gateway.registry import schema
from tests.harness.pages import ROOT

TABLE = {"one": lambda: "new"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\n<!-- generated: one -->\n<!-- end -->\nb\n", "new"),
        ("a\n<!-- generated: one -->\n\nold\n\n<!-- end -->\nb\n", "new"),
    ],
)
def test_what_is_between_marks_is_made_anew(text: str, wanted: str) -> None:
    made = f"a\n<!-- generated: one -->\n\n{wanted}\n\n<!-- end -->\nb\n"
    assert filled(text, TABLE) == made
    assert filled(made, TABLE) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- generated: two -->\n<!-- end -->\n", "no table 'two'; known are one"),
        ("<!-- generated: one -->\nand no end\n", "no other half"),
        ("<!-- end -->\n", "no other half"),
    ],
)
def test_a_wrong_mark_is_told(text: str, said: str) -> None:
    with pytest.raises(BadPage, match=said):
        filled(text, TABLE)


def test_bars_in_cells_are_escaped() -> None:
    assert table(("a", "b"), [("x|y", "z")]).splitlines()[-1] == "| x\\|y | z |"


def test_a_stale_page_is_found_and_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: errors -->\n<!-- end -->\n")
    assert stale([page], write=False) == [page]
    assert stale([page], write=True) == [page]
    assert stale([page], write=True) == []
    assert "`no_capacity`" in page.read_text()


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_every_table_is_in_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [name for name in TABLES if f"<!-- generated: {name} -->" not in pages] == []


def test_the_registry_page_has_every_key() -> None:
    text = (ROOT / "docs" / "registry.md").read_text()
    parts: tuple[type[msgspec.Struct], ...] = (
        *(schema.Manager, schema.ContentionPolicy, schema.Server, schema.ApiKey),
        *(schema.Entry, schema.Scripted),
    )
    keys = {info.name for part in parts for info in msgspec.structs.fields(part)}
    assert {key for key in keys if f"| `{key}` |" not in text} == set()


def subclasses(kind: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from subclasses(sub)


def test_the_table_of_errors_has_every_code_that_a_client_is_told() -> None:
    told = {kind.code for kind in subclasses(errors.GatewayError)}
    assert told - set(codes()) == {"client_gone", "client_too_slow"}


def test_the_page_of_the_command_line_has_every_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()

    def options(made: argparse.ArgumentParser) -> Iterator[str]:
        for action in made._actions:
            if isinstance(action, argparse._SubParsersAction):
                for choice in {action.dest: action for action in action._choices_actions}:
                    yield from options(action.choices[choice])
            elif action.dest not in ("help", "version"):
                yield from action.option_strings[-1:]

    assert {name for name in options(cli.parser()) if name not in text} == set()
