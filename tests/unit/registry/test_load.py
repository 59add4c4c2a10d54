"""Registry files as data: what is reported, where, and what becomes of the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.load import Loaded, load, parse
from gateway.registry.schema import Entry

FIXTURES = Path(__file__).parents[2] / "fixtures" / "registry"
ENVIRON = {"BUDGET": "80", "NAME": "x", "SECRET": "hunter2", "HOME": "/nowhere"}


def parsed(text: str, base: Path = Path("/nowhere")) -> Loaded:
    return parse(text.encode(), file="registry.yaml", base=base, environ=ENVIRON)


def entries(text: str) -> dict[str, Entry]:
    loaded = parsed(text)
    assert not loaded.errors
    return {model.entry.name: model.entry for model in loaded.models}


def table(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((FIXTURES / name).read_text()))


@pytest.mark.parametrize("case", table("problems.yaml"), ids=lambda case: str(case["id"]))
def test_every_problem_is_reported_once(case: dict[str, Any]) -> None:
    loaded = parsed(case["yaml"])
    found = [(p.level, p.line, p.key) for p in loaded.problems]
    assert sorted(found) == sorted((level, line, key) for level, line, key, _ in case["problems"])
    for level, line, key, part in case["problems"]:
        messages = [
            p.message for p in loaded.problems if (p.level, p.line, p.key) == (level, line, key)
        ]
        assert any(part in message for message in messages), messages
    failed = any(problem[0] == "error" for problem in case["problems"])
    assert (loaded.registry is None) == failed


@pytest.mark.parametrize("case", table("budgets.yaml"), ids=lambda case: str(case["written"]))
def test_budget(case: dict[str, Any]) -> None:
    loaded = parsed(
        f"manager:\n  memory_budget_gb: {case['written']}\n"
        "models:\n  - {name: a, engine: scripted}\n"
    )
    if "bytes" in case:
        assert [str(problem) for problem in loaded.problems] == []
        assert loaded.budget_bytes == case["bytes"]
    else:
        assert [(p.line, p.key) for p in loaded.errors] == [(2, "manager.memory_budget_gb")]


@pytest.mark.parametrize(("written", "count"), [("0", 0), ("4", 4), ("null", None)])
def test_standby(written: str, count: int | None) -> None:
    loaded = parsed(f"manager: {{standby: {written}}}\nmodels: []\n")
    assert loaded.registry is not None
    assert loaded.registry.manager.standby == count


@pytest.mark.parametrize("written", ["-1", "5", "1.5", "true", "auto"])
def test_a_standby_that_is_none(written: str) -> None:
    loaded = parsed(f"manager: {{standby: {written}}}\nmodels: []\n")
    assert [problem.key for problem in loaded.errors] == ["manager.standby"]


def test_a_problem_names_file_line_key_and_remedy() -> None:
    loaded = parsed("models:\n  - name: a\n    engine: scripted\n    prelod: true\n")
    assert [str(problem) for problem in loaded.problems] == [
        'error: registry.yaml:4: models[0].prelod: unknown key; did you mean "preload"?'
    ]


def test_values_of_variables_are_never_shown() -> None:
    loaded = parsed(
        "server: {port: '${env:SECRET}', log_level: '${env:SECRET}'}\n"
        "manager: {memory_budget_gb: '${env:SECRET}'}\n"
        "models: ['${env:SECRET}']\n"
    )
    assert len(loaded.errors) == 4
    assert "hunter2" not in "".join(map(str, loaded.problems))


def test_documented_three_models_load_with_a_warning_each() -> None:
    loaded = load(FIXTURES / "three_models.yaml", environ=ENVIRON)
    assert loaded.registry is not None
    assert loaded.registry.manager.contention_policy.strategy == "wait_then_preempt"
    assert [problem.key for problem in loaded.problems] == [
        "models[0].path",
        "models[1].path",
        "models[1].enable_mtp",
        "models[2].path",
    ]
    assert all(
        model.unavailable and "no such folder" in model.unavailable for model in loaded.models
    )
    fast, smart, vision = (model.entry for model in loaded.models)
    assert (fast.preload, fast.max_concurrency, fast.kind) == (True, 1, "text")
    assert (smart.max_concurrency, smart.estimated_memory_gb) == (8, 36.0)
    assert vision.kind == "vision"


def test_missing_file_is_a_problem() -> None:
    loaded = load(Path("/nowhere/registry.yaml"), environ=ENVIRON)
    assert loaded.registry is None
    assert [str(p) for p in loaded.problems] == [
        "error: /nowhere/registry.yaml: cannot be read: No such file or directory"
    ]


def test_defaults_fill_what_an_entry_does_not_say() -> None:
    found = entries(
        "defaults: {ttl_s: 60, temperature: 0.5, chat_template_kwargs: {a: 1}, pin: true,"
        " continuous_batching: false, kind: text}\n"
        "models:\n"
        "  - {name: plain, engine: scripted}\n"
        "  - {name: own, engine: scripted, ttl_s: null, temperature: 1,"
        " chat_template_kwargs: {b: 2}, pin: false, max_concurrency: 3, mllm: true}\n"
        "  - {name: empty, engine: scripted, pin: , kind: embedding}\n"
    )
    plain, own, empty = found["plain"], found["own"], found["empty"]
    assert (plain.ttl_s, plain.temperature, plain.pin, plain.kind) == (60, 0.5, True, "text")
    assert (plain.chat_template_kwargs, plain.max_concurrency) == ({"a": 1}, 1)
    assert (own.ttl_s, own.temperature, own.pin, own.kind) == (None, 1, False, "vision")
    assert (own.chat_template_kwargs, own.max_concurrency) == ({"b": 2}, 3)
    assert (empty.pin, empty.kind) == (True, "embedding")


def test_a_variant_is_its_base_with_other_manners() -> None:
    found = entries(
        "defaults: {top_p: 0.5}\n"
        "models:\n"
        "  - {name: exact, of: base, temperature: 0, aliases: [x]}\n"
        "  - {name: base, engine: scripted, scripted: {size_gb: 1}, temperature: 1, ttl_s: 9,"
        " description: d, aliases: [y], kind: vision}\n"
    )
    exact = found["exact"]
    assert (exact.of, exact.temperature, exact.top_p, exact.ttl_s) == ("base", 0, 0.5, 9)
    assert (exact.aliases, exact.description, exact.kind) == (("x",), "", "vision")
    assert exact.engine == "scripted"


def test_environment_of_an_engine_is_text_as_written() -> None:
    found = entries(
        "models:\n  - {name: a, engine: scripted, env: {N: 1, T: true, Z: , R: '${env:NAME}y'}}\n"
    )
    assert found["a"].env == {"N": "1", "T": "true", "Z": "", "R": "xy"}


def test_aliases_share_a_value() -> None:
    found = entries(
        "defaults: {tags: &tags [x, y]}\nmodels:\n"
        "  - {name: a, engine: scripted, tags: *tags}\n  - {name: b, engine: scripted, tags: []}\n"
    )
    assert found["a"].tags == ("x", "y")
    assert found["b"].tags == ()


def test_references_become_numbers_or_text_as_the_key_asks() -> None:
    loaded = parsed(
        "models: []\ndefaults:\n  tags:\n    - ${env:BUDGET}\n  max_queue: ${env:BUDGET}\n"
    )
    assert loaded.registry is not None
    assert loaded.registry.defaults.tags == ("80",)
    assert loaded.registry.defaults.max_queue == 80


_LAUGHS = b"".join(b"%c: &%c [%s]\n" % (c, c, b"*%c," % (c - 1) * 9) for c in b"bcdefghi")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"models: \x07", "not YAML"),
        (b"a: &a [x]\n" + _LAUGHS, "aliases expanded"),
        (b"[" * 33, "nested more than 32 deep"),
        (b"[" * 100_000, "nesting depth"),
        (b"{a: " * 100_000, "nested more than 32 deep"),
        (b"- " * 100_000, "nested more than 32 deep"),
        (b"a" * (2**20 + 1), "larger than 1048576 bytes"),
        (b"- 1\n" * 150_000, "more than 100000 values"),
        (b"models:\n" + b"- {q: 1}\n" * 5_000, "more problems than these"),
        (b"server: {port: %s}" % (b"9" * 5_000), "found '9999"),
        (b"%s: 1" % (b"x" * 900), "unknown key"),
    ],
)
def test_hostile_files_are_refused_within_bounds(data: bytes, part: str) -> None:
    loaded = parse(data, file="f", base=Path("/nowhere"), environ={})
    assert loaded.registry is None
    assert part in loaded.problems[-1].message
    assert len(loaded.problems) <= 501
    assert all(len(str(problem)) < 400 for problem in loaded.problems)


_keys = st.sampled_from(
    ["models", "manager", "server", "defaults", "name", "path", "engine", "scripted", "aliases",
     "of", "memory_budget_gb", "port", "ttl_s", "env", "contention_policy", "fail_loads", "mllm",
     "<<"]
)  # fmt: skip
_leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["80GB", "${env:NAME}", "${env:", "scripted", "text", "a", ".nan"])
)  # fmt: skip
_trees = st.recursive(
    _leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=5),
    max_leaves=25,
)


def _sound(loaded: Loaded) -> None:
    """Either it is served, or there is an error that says why not; every leaf at most once."""
    assert (loaded.registry is None) == bool(loaded.errors)
    for problem in loaded.problems:
        assert problem.message
        assert problem.line >= 0
        assert str(problem).isprintable()


@given(_trees)
@settings(max_examples=150, deadline=None)
def test_any_tree_gives_problems_and_never_raises(tree: object) -> None:
    _sound(parsed(yaml.safe_dump(tree, allow_unicode=True)))


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=200)
    | st.text("{}[]:,&*!|>-? \n'\"a${", max_size=60)
)
@settings(max_examples=150, deadline=None)
def test_any_text_gives_problems_and_never_raises(text: str) -> None:
    _sound(parsed(text))


@given(st.binary(max_size=100))
@settings(max_examples=100, deadline=None)
def test_any_bytes_give_problems_and_never_raise(data: bytes) -> None:
    _sound(parse(data, file="f", base=Path("/nowhere"), environ={}))
