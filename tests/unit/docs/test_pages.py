"""The pages say nothing that is not so: examples, links, and whatever they name of the code."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from docs.routes import rules
from docs.tables import codes
from gateway import cli
from gateway.doctor import findings
from gateway.registry import schema
from gateway.registry.load import parse
from gateway.registry.schema import fields_of
from tests.harness.pages import (
    ADDRESS,
    ROOT,
    Example,
    all_examples,
    anchors,
    examples,
    links,
    pages,
    prose,
    spans,
)

MARKS = {
    "sh": {"", "run"},
    "python": {"run"},
    "yaml": {"", "registry"},
    "json": {""},
    "toml": {""},
    "text": {""},
    "usage": {""},
}
"""What an example can be. `run` ones are run by `tests/contract/test_docs.py`."""

UNTESTED = {"text", "usage"}
OPERATORS_PAGES = {"README.md", *(page.name for page in (ROOT / "docs").glob("*.md"))}

REGISTRY_PARTS = {
    "manager": schema.Manager,
    "server": schema.Server,
    "contention_policy": schema.ContentionPolicy,
    "scripted": schema.Scripted,
}
OUTSIDE = re.compile(r"\.\./shared|/work/|ghcr\.io|docker\.io|quay\.io|design\.md|§", re.IGNORECASE)
"""Registries of containers, and places that a checkout does not have."""


def ids(example: Example) -> str:
    return example.place


# --- examples -------------------------------------------------------------------------------------


def test_every_example_says_what_it_is() -> None:
    wrong = [
        each.place
        for each in all_examples()
        if each.page in OPERATORS_PAGES and each.mark not in MARKS.get(each.language, set())
    ]
    assert wrong == []


@pytest.mark.parametrize("example", examples("yaml", "registry"), ids=ids)
def test_registries_can_be_served(example: Example, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    for named in re.findall(r"key_file: ~/(\S+)", example.text):
        key = tmp_path / named
        key.parent.mkdir(parents=True)
        key.write_text("a-key-of-this-test\n")
        key.chmod(0o600)
    loaded = parse(example.text.encode(), file=example.place, base=tmp_path, environ=environ)
    assert loaded.errors == ()
    assert loaded.registry is not None


def test_data_can_be_read() -> None:
    for each in examples("yaml"):
        assert isinstance(yaml.safe_load(each.text), dict), each.place
    for each in examples("json"):
        assert json.loads(each.text), each.place
    for each in examples("toml"):
        assert tomllib.loads(each.text), each.place
    for each in examples("python"):
        assert ast.parse(each.text).body, each.place


def test_the_shell_takes_every_command() -> None:
    """One shell for all: a function for each example, which it reads and does not call."""
    script = "".join(
        f"example_{number}() {{\n{each.text}}}\n" for number, each in enumerate(examples("sh"))
    )
    told = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")


def commands() -> list[tuple[str, list[str]]]:
    """Every command of ours in the examples, without what the shell does with it."""
    found = []
    for each in examples("sh"):
        for line in each.text.replace("\\\n", " ").splitlines():
            if "mlx-gateway" not in line or "$(" in line:
                continue
            for part in re.split(r" && | \|\| | \| | > ", line):
                words = shlex.split(part, comments=True)
                if words and words[0].endswith("mlx-gateway"):
                    found.append((each.place, words[1:]))
    return found


def test_the_command_line_takes_every_command() -> None:
    for place, words in commands():
        if words == ["--version"]:
            continue
        try:
            assert cli.parse(words).run, place
        except SystemExit:
            pytest.fail(f"{place}: mlx-gateway {' '.join(words)}")


def test_verbs_that_the_prose_names_exist() -> None:
    verbs = set(re.findall(r"^### (\S+)", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE))
    for page in pages():
        for span in spans(page):
            verb = re.match(r"mlx-gateway ([a-z]+)\b", span)
            assert verb is None or verb[1] in verbs, f"{page.name}: {span}"


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, fragment = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not fragment or fragment in anchors(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_points_outside(page: Path) -> None:
    assert OUTSIDE.findall(page.read_text()) == []


# --- names ----------------------------------------------------------------------------------------


def path_pattern(route: str) -> str:
    return re.sub(r"\\{\w+\\}", r"[^?#]+", re.escape(route))


def known(path: str) -> bool:
    path = path.partition("?")[0]
    return any(re.fullmatch(path_pattern(route), path) for route in rules())


def routes_of(page: Path) -> list[str]:
    """Paths in the prose that are meant to be routes of ours."""
    found = []
    for span in spans(page):
        match = re.fullmatch(r"(?:(?:GET|POST|PUT|DELETE|HEAD) )?(/[a-z][^\s`]*|/)", span)
        if match:
            found.append(match[1])
    return found


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if page.name in OPERATORS_PAGES - {"moving.md", "README.md"}],
    ids=lambda page: page.name,
)
def test_routes_that_the_prose_names_exist(page: Path) -> None:
    folders = ("/opt/", "/usr/", "/etc/", "/srv/", "/Library/")
    endings = ("/load", "/unload", "/pin", "/events", "/v1")
    named = {path for path in routes_of(page) if not path.startswith(folders)}
    assert {path for path in named if path not in endings and not known(path)} == set()


def test_routes_that_examples_ask_exist() -> None:
    for each in all_examples():
        for path in re.findall(re.escape(ADDRESS) + r"(/[^\s'\";]*)", each.text):
            assert path == "/v1" or known(path), f"{each.place}: {path}"


def test_keys_that_the_prose_names_exist() -> None:
    for page in pages():
        for span in spans(page):
            found = re.match(r"(manager|server|contention_policy|scripted)\.(\w+)", span)
            if found:
                part = REGISTRY_PARTS[found[1]]
                assert found[2] in fields_of(part), f"{page.name}: {span}"


def test_files_that_the_readme_and_contributing_name_exist() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for span in spans(ROOT / name):
            if re.fullmatch(r"(gateway|engines|tests|demo|docs|deploy)(/[\w.-]+)+/?", span):
                assert (ROOT / span).exists(), f"{name}: {span}"


def test_every_error_is_explained() -> None:
    explained = anchors(ROOT / "docs" / "troubleshooting.md")
    assert set(codes()) - explained == set()


def test_statuses_in_the_explanations_are_right() -> None:
    text = prose(ROOT / "docs" / "troubleshooting.md")
    for code, kind in codes().items():
        said = re.search(rf"^### {code}\n\n(\d+)", text, re.MULTILINE)
        assert said, code
        assert int(said[1]) == kind.status, code


def test_every_finding_of_the_doctor_is_named() -> None:
    source = Path(findings.__file__).read_text()
    names = set(re.findall(r'Finding\(\n +"([\w-]+)"', source))
    told = set(spans(ROOT / "docs" / "troubleshooting.md"))
    assert names
    assert names - told == set()


# --- the readme -----------------------------------------------------------------------------------


def test_the_first_two_commands_are_what_ci_runs() -> None:
    first = next(each for each in examples("sh") if each.page == "README.md")
    targets = [line.removeprefix("make ") for line in first.text.splitlines()]
    assert targets == ["demo", "test"]
    ran = re.search(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert ran, "CI runs make"
    assert set(targets) <= set(ran[1].split())


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 250
