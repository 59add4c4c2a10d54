"""A YAML tree against the structs of the schema: every leaf gives at most one problem.

Problems are collected, never raised. A leaf that is wrong is left at its default so that the
walk goes on; the caller drops the result when there was an error.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping as MappingType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from gateway.registry import units
from gateway.registry.describe import describe, literals, shown
from gateway.registry.env import EnvError, has_reference, substitute
from gateway.registry.problems import Level, Problem, nearest
from gateway.registry.schema import SIZE, fields_of
from gateway.registry.yaml_tree import Mapping, Node, Scalar, Sequence, resolve

MAX_PROBLEMS = 500

_S = TypeVar("_S", bound=msgspec.Struct)


class Left:
    """Stands for a value that is absent or wrong."""


LEFT = Left()

FILLER = ""
"""In place of a required key or a list item that is wrong: every such one in the schema is text."""


SECRETS = "server.api_keys"
HIDDEN = "something else, which is not shown"
"""A key in the wrong place is a secret all the same, and problems are logged."""


class TooManyProblems(Exception):
    """The walk was given up after `MAX_PROBLEMS`."""


class Walk:
    """One file's walk: `problems` in order, `lines` by key path, `given` keys by mapping path."""

    def __init__(self, file: str, environ: MappingType[str, str]) -> None:
        self.file = file
        self.environ = environ
        self.problems: list[Problem] = []
        self.lines: dict[str, int] = {}
        self.given: dict[str, frozenset[str]] = {}

    def report(self, level: Level, key: str, message: str, line: int | None = None) -> None:
        """Adds a problem; without a line, at the nearest known line above `key`."""
        at = key
        while line is None:
            line = self.lines.get(at) if at else 0
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        self.problems.append(Problem(level, self.file, line, key, message))
        if len(self.problems) >= MAX_PROBLEMS:
            raise TooManyProblems

    def struct(self, node: Node, part: type[_S], key: str) -> _S:
        """`part` from a mapping. A required key that is missing or wrong becomes empty text."""
        fields = fields_of(part)
        values: dict[str, Any] = {}
        self.lines[key] = node.line
        pairs = self._pairs(node, key) if isinstance(node, Mapping) else {}
        readable = isinstance(node, Mapping) or _is_null(node)
        if not readable:
            self._wrong(key, node, f"expected {describe(part)}")
        given = set(pairs)
        for name, child in pairs.items():
            path, before = _join(key, name), len(self.problems)
            if (info := fields.get(name)) is None:
                self.report("error", path, f"unknown key{nearest(name, fields)}")
            elif not isinstance(value := self.value(child, info.type, path), Left):
                values[name] = value
            elif len(self.problems) == before:
                given.discard(name)
        self.given[key] = frozenset(given)
        for name, info in fields.items():
            if info.required and name not in values:
                if name not in given and readable:
                    self.report("error", _join(key, name), "missing; it is required", node.line)
                values[name] = FILLER
        return part(**values)

    def _pairs(self, node: Mapping, key: str) -> dict[str, Node]:
        """The pairs by key, the first of duplicates, which are reported."""
        pairs: dict[str, Node] = {}
        for name, child in node.items:
            path = _join(key, name.text)
            if name.text in pairs:
                first = self.lines[path]
                self.report("error", path, f"given twice; first on line {first}", name.line)
                continue
            pairs[name.text] = child
            self.lines[path] = name.line
        return pairs

    def value(self, node: Node, hint: Any, key: str) -> Any:
        """What `hint` says from `node`, or `LEFT` after reporting why not."""
        bare, optional = _strip(hint)
        if optional and _is_null(node):
            return None
        if isinstance(bare, type) and issubclass(bare, msgspec.Struct):
            return self.struct(node, bare, key)
        if get_origin(bare) is tuple:
            return self._list(node, get_args(bare)[0], key)
        if bare == dict[str, str]:
            return self._texts(node, key)
        return self._leaf(node, hint, key)

    def _list(self, node: Node, hint: Any, key: str) -> Any:
        if _is_null(node):
            return LEFT
        if not isinstance(node, Sequence):
            return self._wrong(key, node, f"expected a list, each item {describe(hint)}")
        items = []
        for index, child in enumerate(node.items):
            path = f"{key}[{index}]"
            self.lines[path] = child.line
            before = len(self.problems)
            item = self.value(child, hint, path)
            if isinstance(item, Left) and len(self.problems) == before:
                self._wrong(path, child, f"expected {describe(hint)}")
            items.append(FILLER if isinstance(item, Left) else item)
        return tuple(items)

    def _texts(self, node: Node, key: str) -> Any:
        """A mapping of texts, in which a number or `true` is the text it looks like."""
        if _is_null(node):
            return LEFT
        if not isinstance(node, Mapping):
            return self._wrong(key, node, "expected a mapping of names to texts")
        texts: dict[str, str] = {}
        for name, child in self._pairs(node, key).items():
            path = _join(key, name)
            if not isinstance(child, Scalar):
                self._wrong(path, child, "expected text")
            elif isinstance(text := self._text(child, path), str):
                texts[name] = text
        return texts

    def _leaf(self, node: Node, hint: Any, key: str) -> Any:
        """One value by `msgspec.convert`; a replaced reference may also count as text."""
        value = self._plain(node, key)
        if isinstance(value, Left) or (value is None and isinstance(node, Scalar) and node.plain):
            return LEFT
        candidates = [value]
        if isinstance(node, Scalar) and has_reference(node.text) and not isinstance(value, str):
            candidates.append(substitute(node.text, self.environ))
        reason = ""
        for candidate in candidates:
            try:
                return msgspec.convert(_sized(candidate, hint), hint)
            except ValueError as error:
                # msgspec's own words name Python types; only a reason of ours is shown.
                reason = "" if isinstance(error, msgspec.ValidationError) else f"; {error}"
        return self._wrong(
            key, node, f"expected {describe(hint)}", reason + _advice(node, value, hint)
        )

    def _plain(self, node: Node, key: str) -> Any:
        """Plain Python values of a tree, references replaced."""
        if isinstance(node, Scalar):
            text = self._text(node, key)
            return resolve(text) if isinstance(text, str) and node.plain else text
        if isinstance(node, Sequence):
            items = [self._plain(child, f"{key}[{i}]") for i, child in enumerate(node.items)]
            return LEFT if any(isinstance(item, Left) for item in items) else items
        pairs = self._pairs(node, key)
        values = {name: self._plain(child, _join(key, name)) for name, child in pairs.items()}
        return LEFT if any(isinstance(v, Left) for v in values.values()) else values

    def _text(self, node: Scalar, key: str) -> str | Left:
        try:
            return substitute(node.text, self.environ)
        except EnvError as error:
            self.report("error", key, str(error), node.line)
            return LEFT

    def _wrong(self, key: str, node: Node, expected: str, more: str = "") -> Left:
        found = HIDDEN if key.startswith(SECRETS) and isinstance(node, Scalar) else shown(node)
        self.report("error", key, f"{expected}; found {found}{more}", node.line)
        return LEFT


def _advice(node: Node, value: Any, hint: Any) -> str:
    """The nearest valid word, or quotes where only those are missing."""
    if isinstance(value, str):
        return nearest(value, literals(hint))
    if isinstance(node, Scalar):
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert(node.text, hint)
            return "; to have it as text, put it in quotes"
    return ""


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and resolve(node.text) is None


def _strip(hint: Any) -> tuple[Any, bool]:
    """The type without annotations, and whether it may be None."""
    while hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if get_origin(hint) in (Union, types.UnionType):
        members = get_args(hint)
        rest = [member for member in members if member is not type(None)]
        if len(rest) == 1 and len(members) == 2:
            return _strip(rest[0])[0], True
        return hint, len(rest) < len(members)
    return hint, False


def _sized(value: Any, hint: Any) -> Any:
    """GiB as a number where `hint` is a size and `value` is text. Raises `ValueError`."""
    if isinstance(value, str) and is_size(hint) and value not in literals(hint):
        return units.parse_size(value) / units.GIB
    return value


def is_size(hint: Any) -> bool:
    if any((meta.extra or {}).get("unit") == SIZE for meta in getattr(hint, "__metadata__", ())):
        return True
    if get_origin(hint) is Literal:
        return False
    inner = (hint.__origin__,) if hasattr(hint, "__metadata__") else get_args(hint)
    return any(is_size(member) for member in inner)


def _join(key: str, name: str) -> str:
    """The path of `name` below `key`, safe to print whatever the file holds."""
    label = name if name.isprintable() and len(name) <= 64 else f"{name[:64]!r}..."
    return f"{key}.{label}" if key else label
