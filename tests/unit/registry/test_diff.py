"""What a reload would do: pairs of registries as data, the table, and the verb that prints it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from gateway.cli import diff as verb
from gateway.registry.diff import Plan, compare
from gateway.registry.diff_text import shown
from gateway.registry.load import Loaded, parse
from tests.unit.registry.test_sizes import write_model

S = "engine: scripted"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal model folders, and one whose config says it sees."""
    base = tmp_path_factory.mktemp("models")
    write_model(base / "m")
    shutil.copytree(base / "m", base / "copy")
    write_model(base / "eyes", {"model_type": "qwen2_vl", "vision_config": {}})
    return base


def loaded(text: str, base: Path = Path("/nowhere")) -> Loaded:
    found = parse(text.encode(), file="r.yaml", base=base, environ={"HOME": "/nowhere"})
    assert found.errors == ()
    return found


def plan(old: str, new: str, base: Path = Path("/nowhere")) -> Plan:
    return compare(loaded(old, base), loaded(new, base))


def entries(*items: str) -> str:
    return "models:\n" + "".join(f"  - {{{item}}}\n" for item in items)


def outcome(found: Plan) -> list[tuple[str, str, list[str]]]:
    """Name, what, and fields with `!` at those that cost a restart, but for what is kept."""
    return [
        (m.name, m.what, [f.key + "!" * (f.reload == "restart") for f in m.fields])
        for m in found.models
        if m.what != "kept"
    ]


CASES: list[tuple[str, str, str, list[tuple[str, str, list[str]]]]] = [
    ("equal", f"name: a, {S}", f"name: a, {S}", []),
    ("default spelled out", f"name: a, {S}", f"name: a, {S}, max_queue: 64, priority: normal", []),
    ("60 is 60.0", f"name: a, {S}, ttl_s: 60", f"name: a, {S}, ttl_s: 60.0", []),
    ("live", f"name: a, {S}", f"name: a, {S}, ttl_s: 60", [("a", "changed", ["ttl_s"])]),
    ("pin", f"name: a, {S}, pin: true", f"name: a, {S}", [("a", "changed", ["pin"])]),
    (
        "restart",
        f"name: a, {S}",
        f"name: a, {S}, context_length: 99, ttl_s: 9",
        [("a", "restarted", ["ttl_s", "context_length!"])],
    ),
    (
        "script",
        f"name: a, {S}, scripted: {{load_s: 1}}",
        f"name: a, {S}, scripted: {{load_s: 2, size_gb: 1}}",
        [("a", "restarted", ["scripted.size_gb!", "scripted.load_s!"])],
    ),
    (
        "true is not 1",
        f"name: a, {S}, scripted: {{stderr_flood: 1}}",
        f"name: a, {S}, scripted: {{stderr_flood: true}}",
        [("a", "restarted", ["scripted.stderr_flood!"])],
    ),
    (
        "environment",
        f"name: a, {S}, env: {{A: x, B: x, C: x}}",
        f"name: a, {S}, env: {{A: x, B: y, D: x}}",
        [("a", "restarted", ["env.B!", "env.C!", "env.D!"])],
    ),
    ("renamed", f"name: a, {S}", f"name: b, {S}", [("a", "removed", []), ("b", "added", [])]),
    ("kind spelled", f"name: a, {S}, kind: vision", f"name: a, {S}, mllm: true", []),
    (
        "one at a time",
        f"name: a, {S}, continuous_batching: false",
        f"name: a, {S}, max_concurrency: 1",
        [],
    ),
    (
        "folder spelled",
        "name: a, path: m",
        "name: a, source: ./m",
        [("a", "changed", ["path", "source"])],
    ),
    (
        "other folder",
        "name: a, path: m",
        "name: a, path: copy",
        [("a", "restarted", ["path!"])],
    ),
    ("detected kind spelled", "name: a, path: m", "name: a, path: m, kind: text", []),
    (
        "other kind",
        "name: a, path: m",
        "name: a, path: m, kind: vision",
        [("a", "restarted", ["kind!"])],
    ),
    (
        "from script to model",
        f"name: a, {S}",
        "name: a, path: m",
        [("a", "restarted", ["path!", "engine!"])],
    ),
    (
        "now missing",
        "name: a, path: m",
        "name: a, path: nothing",
        [("a", "restarted", ["path!", "unavailable"])],
    ),
    (
        "kind of a missing one",
        "name: a, path: nothing",
        "name: a, path: nothing, kind: embedding",
        [("a", "restarted", ["kind!"])],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_what_becomes_of_one_model(
    models: Path, old: str, new: str, expected: list[tuple[str, str, list[str]]]
) -> None:
    found = plan(entries(old), entries(new), models)
    assert outcome(found) == expected
    assert found.empty == (expected == [])


BASE = f"name: a, {S}, temperature: 0.5"
OTHER = f"name: b, {S}"
VARIANTS: list[tuple[str, list[str], list[str], list[tuple[str, str, list[str]]]]] = [
    (
        "a variant's own key",
        [BASE, "name: v, of: a, top_p: 0.5"],
        [BASE, "name: v, of: a, top_p: 0.9"],
        [("v", "changed", ["top_p"])],
    ),
    (
        "a key that it inherits",
        [BASE, "name: v, of: a"],
        [BASE.replace("0.5", "0.7"), "name: v, of: a"],
        [("a", "changed", ["temperature"]), ("v", "changed", ["temperature"])],
    ),
    (
        "a restart of its base",
        [BASE, "name: v, of: a"],
        [f"{BASE}, context_length: 9, ttl_s: 3", "name: v, of: a"],
        [("a", "restarted", ["ttl_s", "context_length!"])],
    ),
    (
        "another base",
        [BASE, OTHER, "name: v, of: a"],
        [BASE, OTHER, "name: v, of: b"],
        [("v", "removed", []), ("v", "added", [])],
    ),
    (
        "a base becomes a variant",
        [BASE, OTHER],
        [BASE, "name: b, of: a"],
        [("b", "removed", []), ("b", "added", [])],
    ),
    ("added", [BASE], [BASE, "name: v, of: a"], [("v", "added", [])]),
    ("removed", [BASE, "name: v, of: a"], [BASE], [("v", "removed", [])]),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), [c[1:] for c in VARIANTS], ids=[c[0] for c in VARIANTS]
)
def test_what_becomes_of_variants(
    old: list[str], new: list[str], expected: list[tuple[str, str, list[str]]]
) -> None:
    assert outcome(plan(entries(*old), entries(*new))) == expected


def test_defaults_count_where_they_apply() -> None:
    models = entries(f"name: a, {S}", f"name: b, {S}, ttl_s: 5")
    found = plan(models, "defaults: {ttl_s: 9}\n" + models)
    assert outcome(found) == [("a", "changed", ["ttl_s"])]
    assert [m.name for m in found.models if m.runs_on] == ["a", "b"]


def test_other_files_in_the_same_folder_are_a_restart(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    text = entries("name: a, path: m", "name: v, of: a")
    before = loaded(text, tmp_path)
    assert compare(before, loaded(text, tmp_path)).empty
    write_model(tmp_path / "m", size=8192)
    assert outcome(compare(before, loaded(text, tmp_path))) == [("a", "restarted", ["files!"])]


def test_a_new_revision_in_the_cache_is_a_restart(models: Path) -> None:
    text = entries("name: a, path: m")
    before = loaded(text, models)
    (moved,) = before.models
    other = msgspec.structs.replace(moved, path=models / "copy")
    found = compare(before, msgspec.structs.replace(before, models=(other,)))
    assert outcome(found) == [("a", "restarted", ["files!"])]


def test_files_that_go_leave_the_process_and_files_that_come_do_not(tmp_path: Path) -> None:
    """And the kind, which only the files could tell, is no change."""
    text = entries("name: a, path: m")
    missing = loaded(text, tmp_path)
    write_model(tmp_path / "m", {"model_type": "qwen2_vl", "vision_config": {}})
    there = loaded(text, tmp_path)
    assert there.models[0].entry.kind == "vision"
    assert outcome(compare(there, missing)) == [("a", "changed", ["unavailable"])]
    assert outcome(compare(missing, there)) == [("a", "restarted", ["unavailable!"])]


def test_manager_server_and_budget() -> None:
    models = entries(f"name: a, {S}")
    found = plan(
        "manager: {memory_budget_gb: 8}\nserver: {port: 1, drain_s: 1}\n" + models,
        "manager: {memory_budget_gb: 9GB, contention_policy: {wait_timeout_s: 3}}\n"
        "server: {port: 2, drain_s: 2}\n" + models,
    )
    assert [f.key for f in found.manager] == [
        "memory_budget_gb",
        "contention_policy.wait_timeout_s",
    ]
    assert [(f.key, f.reload) for f in found.server] == [("port", "restart"), ("drain_s", "live")]
    assert found.needs_service_restart == ("port",)
    assert (found.old_budget_bytes, found.new_budget_bytes) == (8 * 2**30, 9 * 2**30)
    assert not found.empty


def test_a_registry_with_errors_cannot_be_compared() -> None:
    broken = parse(b"[", file="r.yaml", base=Path(), environ={})
    with pytest.raises(ValueError, match="errors"):
        compare(broken, loaded("models: []"))


def test_the_table_says_what_happens() -> None:
    found = plan(
        "manager: {memory_budget_gb: 4, max_engines: 8}\nserver: {port: 8000}\n"
        + entries(f"name: old, {S}", f"name: qwen, {S}, context_length: 4096", f"name: same, {S}"),
        "manager: {memory_budget_gb: 4, max_engines: 4}\nserver: {port: 8001}\n"
        + entries(
            f"name: qwen, {S}, context_length: 8192, ttl_s: 60.5",
            f"name: same, {S}",
            f"name: new, {S}",
            "name: v, of: new",
        ),
    )
    assert str(found).splitlines() == [
        "NAME       WHAT             KEY             OLD   NEW",
        "old        removed",
        "qwen       restarts         ttl_s           -     60.5",
        "                            context_length  4096  8192",
        "new        added",
        "v          added            variant of new",
        "(manager)  changes live     max_engines     8     4",
        "(server)   needs a restart  port            8000  8001",
        "Models that restart or are removed finish their running calls first, "
        "for at most manager.drain_max_s.",
        "server.port: a reload does not apply this; restart the gateway.",
        "1 entry is not interrupted.",
    ]
    assert plan("models: []", "models: []").lines() == ["no difference"]


def test_the_plan_for_programs() -> None:
    found = plan(
        entries(f"name: a, {S}", f"name: b, {S}", f"name: c, {S}, env: {{T: hunter2}}"),
        entries(f"name: b, {S}", f"name: c, {S}, env: {{T: hunter3}}", f"name: d, {S}, tags: [x]"),
    )
    report = json.loads(json.dumps(found.to_builtins()))
    assert report["differs"] is True
    assert {
        what: report[what] for what in ("added", "removed", "restarted", "changed", "kept")
    } == {
        "added": ["d"],
        "removed": ["a"],
        "restarted": ["c"],
        "changed": [],
        "kept": ["b"],
    }
    assert report["models"][1] == {
        "name": "c",
        "what": "restarted",
        "of": None,
        "fields": [{"key": "env.T", "reload": "restart", "old": "set", "new": "changed"}],
    }
    assert "hunter" not in json.dumps(report) + str(found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "true"),
        (60.0, "60"),
        ("x y", "x y"),
        ("", '""'),
        ("a\nb", '"a\\nb"'),
        ([1, {"k": False}], '[1, {"k": false}]'),
        ("x" * 80, "x" * 57 + "..."),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


# --- the verb ---------------------------------------------------------------------------------


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    return verb.run(parser.parse_args(["diff", *argv]))


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return str(file)


def test_diff_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path, "old.yaml", entries(f"name: a, {S}"))
    new = write(tmp_path, "new.yaml", entries(f"name: a, {S}, pin: true"))
    assert run(old, old) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert run(old, new) == 3
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "a", "changes", "live", "pin", "false", "true",
    ]  # fmt: skip
    assert run(old, new, "--json") == 3
    report = msgspec.json.decode(capsys.readouterr().out)
    assert (report["ok"], report["plan"]["changed"]) == (True, ["a"])


def test_diff_verb_shows_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path, "old.yaml", "model: []\n")
    new = write(tmp_path, "new.yaml", "models: [{name: a, path: gone}]\nserver: {prt: 1}\n")
    assert run(old, new) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"error: {old}:1: model: unknown key")
    assert lines[1].startswith(f"error: {new}:2: server.prt: unknown key")
    assert lines[2:] == ["2 errors; nothing was compared"]
    assert run(old, new, "--json") == 1
    report = msgspec.json.decode(capsys.readouterr().out)
    assert (report["ok"], report["plan"], len(report["problems"])) == (False, None, 2)


def test_diff_verb_counts_paths_from_a_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "m")
    old = write(tmp_path, "registry.yaml", entries("name: a, path: m"))
    draft = write(tmp_path / "draft", "registry.yaml", entries("name: a, path: m"))
    assert run(old, draft) == 3
    assert "unavailable" in capsys.readouterr().out
    assert run(old, draft, "--base", str(tmp_path)) == 0
