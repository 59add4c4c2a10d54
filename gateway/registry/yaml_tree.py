"""YAML text to a tree of values that know their lines. Never raises anything but `TreeError`.

The tree is composed here from the parser's events rather than by PyYAML's own composer: that one
recurses, loses duplicate keys, and reads `yes`, `1:20` and `.nan` as something else than text.
Plain scalars are `true`, `false`, `null` or nothing, a JSON number, or else text. Everything a
hostile file could blow up is bounded: bytes, depth, and nodes once aliases are expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_NODES = 100_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "": None}
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")

Value = bool | int | float | str | None


class TreeError(Exception):
    """The file cannot be read as one YAML document. `line` is 1-based, 0 when unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True)
class Scalar:
    """`plain` scalars are resolved by `resolve`, quoted and block ones are text."""

    text: str
    plain: bool
    line: int
    weight: int = 1


@dataclass(slots=True)
class Sequence:
    line: int
    items: list[Node] = field(default_factory=list)
    weight: int = 1


@dataclass(slots=True)
class Mapping:
    """Pairs as written: a duplicate key appears twice."""

    line: int
    items: list[tuple[Scalar, Node]] = field(default_factory=list)
    weight: int = 1
    key: Scalar | None = None


Node = Scalar | Sequence | Mapping


def resolve(text: str) -> Value:
    """What a plain scalar means; a number that is not finite stays text."""
    if text in _WORDS:
        return _WORDS[text]
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match.group(1) is None and match.group(2) is None:
        return int(text)
    number = float(text)
    return number if abs(number) < float("inf") else text


def compose(data: bytes) -> Node | None:
    """The document's root, None for an empty file. Raises `TreeError`."""
    if len(data) > MAX_BYTES:
        raise TreeError(f"the file is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TreeError("not UTF-8 text", data[: error.start].count(b"\n") + 1) from error
    builder = _Builder()
    try:
        builder.feed_all(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text) from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise TreeError(f"not YAML: {error.reason}", line) from error
    except yaml.YAMLError as error:
        raise TreeError(f"not YAML: {error}") from error
    return builder.root


def _syntax(error: yaml.MarkedYAMLError, text: str) -> TreeError:
    """What is wrong and where; the parser's context says where the broken part began."""
    said = " ".join(filter(None, (error.problem, error.context))) or "cannot be parsed"
    at = None if error.problem_mark is None else error.problem_mark.line
    begun = None if error.context_mark is None else error.context_mark.line
    if at is None:
        at = begun
    elif error.context and begun is not None and begun != at:
        said += f" that begins on line {begun + 1}"
    lines = text.splitlines()
    if at is not None and at < len(lines) and "${" in lines[at]:
        said += '; inside {} or [] a reference needs quotes: "${env:NAME}"'
    return TreeError(f"not YAML: {said}", 0 if at is None else at + 1)


class _Builder:
    """Builds the tree from events; an alias stands for the very node it names."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Sequence | Mapping] = []
        self._names: list[str | None] = []
        self._anchors: dict[str, Node] = {}
        self._nodes = 0

    def feed_all(self, events: Iterable[yaml.Event]) -> None:
        for event in events:
            mark = event.start_mark
            self._feed(event, 0 if mark is None else mark.line + 1)

    def _feed(self, event: yaml.Event, line: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._begin(Sequence(line), event, "tag:yaml.org,2002:seq")
        elif isinstance(event, yaml.MappingStartEvent):
            self._begin(Mapping(line), event, "tag:yaml.org,2002:map")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), line)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise TreeError("a second document begins here; a registry is one document", line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            raise TreeError(f"the tag {event.tag!r} is not supported; leave it out", line)
        scalar = Scalar(event.value, event.implicit[0], line)
        self._count(1, line)
        self._attach(scalar, event.anchor)

    def _begin(self, node: Sequence | Mapping, event: Any, tag: str) -> None:
        if event.tag is not None and event.tag != tag:
            raise TreeError(f"the tag {event.tag!r} is not supported; leave it out", node.line)
        if len(self._open) >= MAX_DEPTH:
            raise TreeError(f"nested more than {MAX_DEPTH} deep", node.line)
        if self._open and isinstance(self._open[-1], Mapping) and self._open[-1].key is None:
            raise TreeError("a key must be text", node.line)
        self._count(1, node.line)
        self._open.append(node)
        self._names.append(event.anchor)

    def _end(self) -> None:
        self._attach(self._open.pop(), self._names.pop())

    def _alias(self, name: str, line: int) -> None:
        node = self._anchors.get(name)
        if node is None:
            raise TreeError(f"the alias {name!r} names nothing that is complete above it", line)
        self._count(node.weight, line)
        self._attach(node, None)

    def _count(self, nodes: int, line: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise TreeError(f"more than {MAX_NODES} values, aliases expanded", line)

    def _attach(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        parent.weight += node.weight
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif parent.key is not None:
            parent.items.append((parent.key, node))
            parent.key = None
        elif isinstance(node, Scalar):
            parent.key = node
        else:
            raise TreeError("a key must be text", node.line)
