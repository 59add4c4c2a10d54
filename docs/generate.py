"""Writes the generated parts of the pages: `python -m docs.generate`, with `--check` to compare.

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; what is between them
belongs to this program and everything else to the page's authors.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.tables import TABLES

FOLDER = Path(__file__).parent

_PART = re.compile(r"<!-- generated: (?P<name>[\w -]+) -->\n(?P<text>.*?)<!-- end -->\n", re.DOTALL)
_MARK = re.compile(r"<!-- (?:generated: .*|end) -->")


class BadPage(Exception):
    """The message says which mark of which page is wrong."""


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The page with every marked part made anew.

    Raises `BadPage` for a name that is not in `tables`, and for a mark without its other half.
    """

    def made(part: re.Match[str]) -> str:
        name = part["name"]
        if name not in tables:
            raise BadPage(f"there is no table {name!r}; known are {', '.join(sorted(tables))}")
        return f"<!-- generated: {name} -->\n\n{tables[name]().strip()}\n\n<!-- end -->\n"

    result = _PART.sub(made, text)
    if stray := _MARK.search(_PART.sub("", text)):
        raise BadPage(f"{stray.group()} has no other half")
    return result


def stale(pages: Sequence[Path], *, write: bool) -> list[Path]:
    """The pages that were not as they should be; with `write` they are now.

    Raises `BadPage`.
    """
    found = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        try:
            wanted = filled(text, TABLES)
        except BadPage as error:
            raise BadPage(f"{page.name}: {error}") from error
        if wanted != text:
            found.append(page)
            if write:
                page.write_text(wanted, encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is stale")
    check = parser.parse_args(arguments).check
    try:
        pages = stale(sorted(FOLDER.glob("*.md")), write=not check)
    except BadPage as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    for page in pages:
        print(f"docs/{page.name} is stale; run make docs" if check else f"wrote docs/{page.name}")
    return 1 if check and pages else 0


if __name__ == "__main__":
    sys.exit(main())
