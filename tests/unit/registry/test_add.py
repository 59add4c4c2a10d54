"""One more entry in a registry's text: the new one is there, and everything else is as it was."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.add import CannotAdd, added, entry_of

NEW = entry_of("new", {"path": "~/m/new"}, aliases=["a b", "c"], pin=True)
BLOCK = "name: new\n  {0}path: ~/m/new\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "models:\n  - name: new\n    path: x\n"),
        ("manager: {}\n", "manager: {}\n\nmodels:\n  - name: new\n    path: x\n"),
        ("models:", "models:\n  - name: new\n    path: x\n"),
        ("models: []  # none yet\n", "models:  # none yet\n  - name: new\n    path: x\n"),
        ("models:\nserver: {}\n", "models:\n  - name: new\n    path: x\nserver: {}\n"),
        (
            "models:\n- name: a\n  path: b",
            "models:\n- name: a\n  path: b\n- name: new\n  path: x\n",
        ),
        (
            "models:\n  -   name: a\n      path: b  # here\n      # about a\n\n# after\nserver:\n",
            "models:\n  -   name: a\n      path: b  # here\n      # about a\n"
            "  -   name: new\n      path: x\n\n# after\nserver:\n",
        ),
        (
            # A blank line behind a block is a part of it.
            "models:\n  - name: a\n    path: |\n      two\n      lines\n\nserver: {}\n",
            "models:\n  - name: a\n    path: |\n      two\n      lines\n\n"
            "  - name: new\n    path: x\nserver: {}\n",
        ),
        (
            "models: [{name: a, path: b}]\nserver: {}\n",
            'models: [{name: a, path: b}, {name: "new", path: "x"}]\nserver: {}\n',
        ),
        (
            "models: [\n  {name: a, path: b},\n]\n",
            'models: [\n  {name: a, path: b}, {name: "new", path: "x"}\n]\n',
        ),
        ("models:\r\n  - name: a\r\n    path: b\r\n", None),
    ],
)
def test_the_entry_is_behind_the_others(before: str, after: str | None) -> None:
    found = added(before, {"name": "new", "path": "x"})
    if after is None:
        assert found == before + "  - name: new\r\n    path: x\r\n"
    else:
        assert found == after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- a\n", "no mapping of keys"),
        ("{server: {}}\n", "in braces"),
        ("models: {a: b}\n", "no list"),
        ("models:\n  -\n    name: a\n    path: b\n", "below its dash"),
        ("a: [", "no YAML"),
    ],
)
def test_what_cannot_be_changed_is_said(text: str, why: str) -> None:
    with pytest.raises(CannotAdd, match=why):
        added(text, NEW)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1
)
WORDS = st.sampled_from(
    ["yes", "null", "~", "on", "1:20", "0x1f", "- a", "a: b", "#x", "'", '"', "é"]
)
VALUES = st.one_of(NAMES, WORDS, st.booleans(), st.integers(), st.lists(WORDS, max_size=3))
KEYS = st.sampled_from(["name", "path", "pin", "aliases", "tags"])
ENTRIES = st.dictionaries(KEYS, VALUES, min_size=1)


def written(entries: list[dict[str, Any]], head: str, indent: int, flow: bool) -> str:
    """A registry with comments, in one of the forms that people write."""
    if flow:
        return f"{head}models: {yaml.safe_dump(entries, default_flow_style=True, width=10**6)}"
    lines = [f"{head}models:"]
    for number, entry in enumerate(entries):
        block = yaml.safe_dump([entry], sort_keys=False, width=10**6, allow_unicode=True)
        lines += [f"{' ' * indent}# entry {number}"]
        lines += [" " * indent + line for line in block.splitlines()]
        lines += [""]
    return "\n".join([*lines, "# the end", "server: {port: 1}"]) + "\n"


@given(
    st.lists(ENTRIES, max_size=4),
    ENTRIES,
    st.sampled_from(["", "# head\nmanager:\n  memory_budget_gb: 1\n\n"]),
    st.integers(0, 4),
    st.booleans(),
)
def test_nothing_else_changes(
    entries: list[dict[str, Any]], new: dict[str, Any], head: str, indent: int, flow: bool
) -> None:
    before = written(entries, head, indent, flow)
    after = added(before, new)
    old_document, document = yaml.safe_load(before), yaml.safe_load(after)
    assert document.pop("models") == [*(old_document.pop("models") or []), new]
    assert document == old_document
    if entries and not flow:
        kept = iter(after.splitlines())
        assert all(line in kept for line in before.splitlines()), "a line is gone or has moved"
