"""The documented table of families names every parser there is, and none that there is not."""

from __future__ import annotations

import re
import typing
from pathlib import Path

from gateway.registry.schema import ReasoningParser, ToolParser

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def test_the_table_of_families_is_complete() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### Parsers\n")[1].split("\n#")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line[:1] == "|"]
    header, _, *families = rows
    assert [cell.strip() for cell in header[1:3]] == ["`tool_parser`", "`reasoning_parser`"]
    for column, names in ((1, ToolParser), (2, ReasoningParser)):
        told = {name for row in families for name in re.findall(r"`([^`]+)`", row[column])}
        assert told == set(typing.get_args(names)) - {"auto"}
