"""What the documentation's pages hold: examples, links, headings, and what they name in code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"
"""Where every example takes the gateway to be."""

_FENCED = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block. `language` is the first word behind the fence, `mark` the rest."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def pages() -> tuple[Path, ...]:
    """Every page that people read."""
    return (
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "deploy").glob("*/README.md")),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    )


def examples(language: str, mark: str | None = None) -> list[Example]:
    """Of this language, and of this mark where one is named."""
    return [
        each
        for page in pages()
        for each in _examples(page)
        if each.language == language and mark in (None, each.mark)
    ]


def all_examples() -> Iterator[Example]:
    for page in pages():
        yield from _examples(page)


@cache
def _examples(page: Path) -> tuple[Example, ...]:
    text = page.read_text(encoding="utf-8")
    found = []
    for block in _FENCED.finditer(text):
        language, _, mark = block["info"].strip().partition(" ")
        line = text.count("\n", 0, block.start()) + 2
        found.append(Example(page.name, line, language, mark, block["text"]))
    return tuple(found)


@cache
def prose(page: Path) -> str:
    """The page without its examples."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def spans(page: Path) -> list[str]:
    """What the prose has in backticks."""
    return _SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    return {_slug(heading) for heading in _HEADING.findall(prose(page))}


def _slug(heading: str) -> str:
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
