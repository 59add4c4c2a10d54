"""Workload files: requests with checks of their answers.

A file is checked as a whole, and every problem is told with its place. A case has its own
`messages`, or a `request_path` to an OpenAI-compatible request; its own keys go before the file's
defaults, `extra_body` before everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

MAX_BYTES = 64 * 2**20

CachePolicy = Literal["preserve", "before-run", "before-case"]
POLICIES = ("preserve", "before-run", "before-case")


class BadWorkload(Exception):
    """The file cannot be run; one line for each problem."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What an answer has to be like; patterns are Python's."""

    finish_reason: str | None = None
    required_regex: tuple[re.Pattern[str], ...] = ()
    forbidden_regex: tuple[re.Pattern[str], ...] = ()
    min_chars: int | None = None
    max_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """`body` is the request but for its model. `policy_timeout_ms` is compared, not enforced."""

    id: str
    body: dict[str, Any]
    checks: Checks = field(default_factory=Checks)
    tags: tuple[str, ...] = ()
    policy_timeout_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    cases: tuple[Case, ...]
    description: str = ""
    cache_policy: CachePolicy = "preserve"


def load(path: Path) -> Workload:
    """Raises `BadWorkload`."""
    return parse(_json(path, "the workload"), path.parent)


def parse(document: Any, folder: Path) -> Workload:
    """As `load`, for a document at hand; `request_path` counts from `folder`."""
    return _Reader(folder).workload(document)


def _json(path: Path, what: str) -> Any:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES + 1))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadWorkload(f"{path}: {what} cannot be read: {error}") from error


_CASE_KEYS = frozenset(
    ("id", "messages", "request_path", "checks", "tags", "extra_body", "policy_timeout_ms")
)
_BODY_KEYS = frozenset(("max_tokens", "enable_thinking", "temperature", "top_p", "seed", "stop"))
_FILE_KEYS = frozenset(("name", "description", "defaults", "cases", "cache_policy"))
_DEFAULT_KEYS = _BODY_KEYS | {"checks", "policy_timeout_ms", "extra_body"}


class _Reader:
    """Collects problems while it builds; `workload` raises them all at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[str] = []

    def workload(self, document: Any) -> Workload:
        if not isinstance(document, Mapping):
            raise BadWorkload("the workload is no JSON object")
        self._known(document, _FILE_KEYS, "")
        defaults = self._mapping(document.get("defaults"), "defaults")
        self._known(defaults, _DEFAULT_KEYS, "defaults.")
        policy = str(document.get("cache_policy") or "preserve").replace("_", "-")
        if policy not in POLICIES:
            self._problems.append(f"cache_policy: {policy!r} is none of {', '.join(POLICIES)}")
        listed = document.get("cases")
        if not isinstance(listed, list) or not listed:
            self._problems.append("cases: a list of at least one case is needed")
            listed = []
        cases = [self._case(case, defaults, f"cases[{n}]") for n, case in enumerate(listed)]
        ids = [case.id for case in cases]
        self._problems += [f"cases: the id {each!r} is there twice" for each in _repeated(ids)]
        if self._problems:
            raise BadWorkload("\n".join(self._problems))
        return Workload(
            name=str(document.get("name") or "workload"),
            cases=tuple(cases),
            description=str(document.get("description") or ""),
            cache_policy=policy,  # type: ignore[arg-type]  # it is one of POLICIES: tested above
        )

    def _case(self, given: Any, defaults: Mapping[str, Any], place: str) -> Case:
        case = self._mapping(given, place)
        self._known(case, _CASE_KEYS | _BODY_KEYS, f"{place}.")
        name = case.get("id")
        if not isinstance(name, str) or not name:
            self._problems.append(f"{place}.id: every case needs one")
            name = place
        body = self._body(case, defaults, place)
        given_checks = {
            **self._mapping(defaults.get("checks"), "defaults.checks"),
            **self._mapping(case.get("checks"), f"{place}.checks"),
        }
        timeout = case.get("policy_timeout_ms", defaults.get("policy_timeout_ms"))
        if timeout is not None and not _is_number(timeout):
            self._problems.append(f"{place}.policy_timeout_ms: {timeout!r} is no number")
            timeout = None
        tags = case.get("tags") or []
        return Case(
            id=name,
            body=body,
            checks=self._checks(given_checks, f"{place}.checks"),
            tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
            policy_timeout_ms=timeout,
        )

    def _body(
        self, case: Mapping[str, Any], defaults: Mapping[str, Any], place: str
    ) -> dict[str, Any]:
        named, messages = case.get("request_path"), case.get("messages")
        if (named is None) == (messages is None):
            self._problems.append(f"{place}: give either messages or request_path")
            return {}
        body: dict[str, Any] = {key: defaults[key] for key in _BODY_KEYS & defaults.keys()}
        body |= self._mapping(defaults.get("extra_body"), "defaults.extra_body")
        if named is not None:
            body |= self._request(self._folder / str(named), f"{place}.request_path")
        else:
            body["messages"] = messages
        if not isinstance(body.get("messages"), list):
            self._problems.append(f"{place}: messages have to be a list")
        body |= {key: case[key] for key in _BODY_KEYS & case.keys()}
        body |= self._mapping(case.get("extra_body"), f"{place}.extra_body")
        return {key: value for key, value in body.items() if key not in ("model", "stream")}

    def _request(self, path: Path, place: str) -> dict[str, Any]:
        try:
            return dict(self._mapping(_json(path, "the request"), place))
        except BadWorkload as error:
            self._problems.append(f"{place}: {error}")
            return {"messages": []}

    def _checks(self, given: Mapping[str, Any], place: str) -> Checks:
        known = frozenset(Checks.__dataclass_fields__)
        self._known(given, known, f"{place}.")
        for key in ("min_chars", "max_chars"):
            if given.get(key) is not None and not isinstance(given[key], int):
                self._problems.append(f"{place}.{key}: {given[key]!r} is no whole number")
        return Checks(
            finish_reason=given.get("finish_reason"),
            required_regex=self._patterns(given, "required_regex", place),
            forbidden_regex=self._patterns(given, "forbidden_regex", place),
            min_chars=given.get("min_chars"),
            max_chars=given.get("max_chars"),
        )

    def _patterns(
        self, given: Mapping[str, Any], key: str, place: str
    ) -> tuple[re.Pattern[str], ...]:
        listed = given.get(key) or []
        if not isinstance(listed, str | list):
            self._problems.append(f"{place}.{key}: {listed!r} is no pattern and no list of them")
            return ()
        patterns = []
        for text in [listed] if isinstance(listed, str) else listed:
            if not text:  # an empty pattern would match everything
                continue
            try:
                patterns.append(re.compile(text))
            except (re.error, TypeError) as error:
                self._problems.append(f"{place}.{key}: {text!r} is no pattern: {error}")
        return tuple(patterns)

    def _mapping(self, value: Any, place: str) -> Mapping[str, Any]:
        if value is None or isinstance(value, Mapping):
            return value or {}
        self._problems.append(f"{place}: a JSON object is needed here")
        return {}

    def _known(self, given: Mapping[str, Any], known: frozenset[str], prefix: str) -> None:
        unknown = sorted(set(given) - known)
        self._problems += [f"{prefix}{key}: there is no such key" for key in unknown]


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
