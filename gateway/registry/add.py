"""One more entry in a registry file, written into its text: nothing else in it changes. Pure.

The place is found in the YAML tree, by the marks of its nodes: behind the last value of the last
entry, or in a flow list before its bracket. Comments and blank lines stay where they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z_~/][A-Za-z0-9_./@+~-]*")
_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"))

Value = str | bool | int | float | list[str]


class CannotAdd(Exception):
    """The file is of a form that is not changed by program; the message says what to do."""


def added(text: str, entry: Mapping[str, Value]) -> str:
    """`text` with the entry behind the others. Raises `CannotAdd`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise CannotAdd(f"the file is no YAML: {error}") from error
    if root is None:
        return _appended(text, ["models:", *_block(entry, "  ", 2)], newline)
    if not isinstance(root, yaml.MappingNode):
        raise CannotAdd("the file is no mapping of keys; write `models:` and the entry by hand")
    models = next((value for key, value in root.value if key.value == "models"), None)
    if models is None:
        if root.flow_style:
            raise CannotAdd("the whole file is in braces; add the entry by hand")
        return _appended(text, ["models:", *_block(entry, "  ", 2)], newline)
    if _is_empty(models):
        return _filled(text, models, entry, newline)
    if not isinstance(models, yaml.SequenceNode):
        raise CannotAdd("`models` is no list")
    if models.flow_style:
        return _in_flow(text, models, entry)
    return _behind_the_last(text, models, entry, newline)


def _is_empty(node: yaml.Node) -> bool:
    return not node.value or node.tag == "tag:yaml.org,2002:null"


def _filled(text: str, node: yaml.Node, entry: Mapping[str, Value], newline: str) -> str:
    """In place of `[]`, `null` or nothing behind `models:`."""
    before, after = text[: node.start_mark.index], text[node.end_mark.index :]
    column = before.rsplit("\n", 1)[-1]
    indent = " " * (len(column) - len(column.lstrip())) + "  "
    lines = newline.join(_block(entry, indent, 2))
    rest = after.split("\n", 1)
    return f"{before.rstrip(' ')}{rest[0]}\n{lines}{newline}" + (rest[1] if len(rest) > 1 else "")


def _in_flow(text: str, models: yaml.SequenceNode, entry: Mapping[str, Value]) -> str:
    at = models.end_mark.index - 1  # the bracket
    before = text[:at].rstrip()
    comma = "" if before.endswith(",") else ","
    fields = ", ".join(f"{key}: {_value(value, flow=True)}" for key, value in entry.items())
    return f"{before}{comma} {{{fields}}}{text[len(before) : at]}{text[at:]}"


def _behind_the_last(
    text: str, models: yaml.SequenceNode, entry: Mapping[str, Value], newline: str
) -> str:
    lines = text.splitlines(keepends=True)
    first = models.value[0].start_mark
    head = lines[first.line][: first.column]
    if "-" not in head:
        raise CannotAdd("an entry begins below its dash; add the new one by hand")
    dash = head.rindex("-")
    at = _end_line(models.value[-1])
    while at < len(lines) and _is_comment_of(lines[at], dash):
        at += 1
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += newline
    new = [f"{line}{newline}" for line in _block(entry, " " * dash, first.column - dash)]
    return "".join([*lines[:at], *new, *lines[at:]])


def _is_comment_of(line: str, dash: int) -> bool:
    """A comment that is written as a part of the entry above it."""
    stripped = line.lstrip(" ")
    return stripped.startswith("#") and len(line) - len(stripped) > dash


def _end_line(node: yaml.Node) -> int:
    """The first line behind a node. Block collections end where the next thing begins, so their
    last value counts."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        parts = last if isinstance(last, tuple) else (last,)
        return max(map(_end_line, parts))
    end = node.end_mark
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        return int(end.line) + (1 if end.column else 0)
    return int(end.line) + 1


def _appended(text: str, lines: list[str], newline: str) -> str:
    gap = "" if not text or text.endswith("\n") else newline
    blank = newline if text.strip() else ""
    return text + gap + blank + newline.join(lines) + newline


def _block(entry: Mapping[str, Value], indent: str, width: int) -> list[str]:
    """`width` is from the dash to the first key."""
    dash = "-".ljust(width)
    lead = [indent + dash, *([indent + " " * width] * (len(entry) - 1))]
    return [
        f"{a}{key}: {_value(value)}" for a, (key, value) in zip(lead, entry.items(), strict=True)
    ]


def _value(value: Value, *, flow: bool = False) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(each, flow=True) for each in value) + "]"
    if isinstance(value, str) and not flow and _PLAIN.fullmatch(value):
        return value if value.lower() not in _WORDS else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def entry_of(name: str, place: Mapping[str, str], **others: Any) -> dict[str, Value]:
    """The keys in the order in which people write them; what is None or empty is left out."""
    wanted: dict[str, Any] = {"name": name, **place, **others}
    return {key: value for key, value in wanted.items() if value not in (None, [], "", False)}
