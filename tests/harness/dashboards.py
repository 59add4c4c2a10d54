"""A Grafana dashboard's queries, as far as telling which series they read.

`Query` knows as much of PromQL as is needed to tell names of metrics from functions, keywords and
labels; it does not evaluate anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w:])([A-Za-z_:][\w:]*)\s*(\{[^}]*\}|\()?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_VALUES = re.compile(r"label_values\(\s*(?P<metric>[^,()]+?)\s*,\s*(?P<label>\w+)\s*\)")
_LEGEND = re.compile(r"{{\s*(\w+)\s*}}")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "inf", "nan"})


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of the dashboard. `where` is the title of its panel."""

    where: str
    text: str
    legend: str = ""
    datasource: str = ""

    @property
    def groupings(self) -> set[str]:
        """Labels in `by (...)` and the like."""
        bare = _STRING.sub('""', self.text)
        return {
            label.strip()
            for inside in _GROUPING.findall(bare)
            for label in inside.split(",")
            if label.strip()
        }

    @property
    def selectors(self) -> list[tuple[str, set[str]]]:
        """Names of metrics, each with the labels that it is matched by."""
        bare = _GROUPING.sub("", _RANGE.sub("", _STRING.sub('""', self.text)))
        return [
            (name, set(_MATCHER.findall(rest)))
            for name, rest in _SELECTOR.findall(re.sub(r"\$\{?\w+\}?", "1", bare))
            if rest != "(" and name not in _WORDS
        ]

    def faults(self, names: Mapping[str, set[str]]) -> Iterator[str]:
        """What it reads that is not on the page, whose `names` have these labels."""
        if not self.selectors:
            yield f"{self.where}: reads nothing: {self.text}"
        there: set[str] = set()
        for name, labels in self.selectors:
            if name not in names:
                yield f"{self.where}: there is no {name}"
                continue
            there |= names[name]
            for label in labels - names[name]:
                yield f"{self.where}: {name} has no label {label}"
        for label in (self.groupings | set(_LEGEND.findall(self.legend))) - there:
            yield f"{self.where}: no label {label} in {self.text}"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`rows` are the titles of its rows in order."""

    queries: list[Query]
    rows: list[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        document: dict[str, Any] = json.loads(path.read_bytes())
        panels: list[dict[str, Any]] = document["panels"]
        queries = [
            Query(panel["title"], target["expr"], target.get("legendFormat", ""), _source(target))
            for panel in panels
            for target in panel.get("targets", ())
        ]
        for variable in document["templating"]["list"]:
            if variable["type"] == "query":
                found = _VALUES.fullmatch(variable["query"]["query"])
                assert found is not None, variable["query"]
                name = f"variable {variable['name']}"
                legend = f"{{{{{found['label']}}}}}"
                queries.append(Query(name, found["metric"], legend, _source(variable)))
        return cls(queries, [panel["title"] for panel in panels if panel["type"] == "row"])


def _source(part: dict[str, Any]) -> str:
    uid: str = part["datasource"]["uid"]
    return uid
