"""Rules between keys: names, where a model comes from, variants, keys that contradict. Pure.

They run on the walked file before defaults are merged, and only look at keys that are right.
"""

from __future__ import annotations

import msgspec

from gateway.registry import warm
from gateway.registry.problems import nearest
from gateway.registry.schema import (
    ORIGINS,
    VARIANT_KEYS,
    Defaults,
    Entry,
    Manager,
    Registry,
)
from gateway.registry.walk import Walk

RESERVED_ENDINGS = ("/events", "/load", "/unload", "/pin")
"""Paths below `/v1/models/{id}`: a name that ends in one could not be told from it."""

RESERVED_VARIABLE = "MLX_GATEWAY_ENGINE_"


_RIVALS = {
    "kind": "mllm",
    "mllm": "kind",
    "max_concurrency": "continuous_batching",
    "continuous_batching": "max_concurrency",
}
"""Two spellings of one thing: an entry that uses one does not take the default of the other."""


def check(walk: Walk, registry: Registry) -> None:
    """Reports every broken rule to `walk`."""
    wrong = {problem.key for problem in walk.problems if problem.level == "error"}
    _check_policy(walk, registry.manager)
    _check_settings(walk, registry.defaults, "defaults")
    _check_names(walk, registry.models)
    bases = {entry.name: entry for entry in registry.models}
    for index, entry in enumerate(registry.models):
        key = f"models[{index}]"
        if key in wrong:
            continue
        if "of" in walk.given[key]:
            _check_variant(walk, entry, key, bases)
        else:
            _check_origin(walk, entry, key, wrong)
        _check_settings(walk, entry, key)
        _check_transcriber(walk, entry.audio_transcriber, f"{key}.audio_transcriber", bases)
    defaults = registry.defaults.audio_transcriber
    _check_transcriber(walk, defaults, "defaults.audio_transcriber", bases)


def _check_transcriber(walk: Walk, name: str | None, key: str, bases: dict[str, Entry]) -> None:
    """That it transcribes is found out when it is asked: its kind may only be in its files."""
    if name is not None and name not in bases:
        walk.report("error", key, f'no entry is named "{name}"{nearest(name, bases)}')


def _check_policy(walk: Walk, manager: Manager) -> None:
    policy = manager.contention_policy
    if policy.strategy == "wait_then_preempt" and policy.preempt_after_s >= policy.wait_timeout_s:
        walk.report(
            "warning",
            "manager.contention_policy.preempt_after_s",
            f"nothing is ever preempted: requests are refused at wait_timeout_s "
            f"({policy.wait_timeout_s:g} s), before {policy.preempt_after_s:g} s have passed",
        )


def _check_names(walk: Walk, models: tuple[Entry, ...]) -> None:
    """Names first, so that an alias that equals a later name is the one at fault."""
    owners: dict[str, str] = {}
    names = [(f"models[{i}].name", entry.name) for i, entry in enumerate(models)]
    aliases = [
        (f"models[{i}].aliases[{j}]", alias)
        for i, entry in enumerate(models)
        for j, alias in enumerate(entry.aliases)
    ]
    for key, name in names + aliases:
        if not name:
            continue
        if name in owners:
            first = owners[name]
            walk.report(
                "error", key, f'"{name}" is already used by {first} on line {walk.lines[first]}'
            )
        owners.setdefault(name, key)
        ending = next((end for end in RESERVED_ENDINGS if name.endswith(end)), None)
        if ending:
            walk.report("error", key, f'a name must not end in "{ending}"')


def _check_origin(walk: Walk, entry: Entry, key: str, wrong: set[str]) -> None:
    given = [
        origin
        for origin in ORIGINS
        if getattr(entry, origin) is not None or f"{key}.{origin}" in wrong
    ]
    if not given:
        walk.report("error", key, "needs one of path, source, model, engine or of")
    for origin in given[1:]:
        walk.report(
            "error", f"{key}.{origin}", f"{given[0]} is given too; exactly one of them counts"
        )
    if entry.scripted is not None and "engine" not in given:
        walk.report("error", f"{key}.scripted", "only for entries with engine: scripted")


def _check_variant(walk: Walk, entry: Entry, key: str, bases: dict[str, Entry]) -> None:
    for name in sorted(walk.given[key] & set(Entry.__struct_fields__) - VARIANT_KEYS):
        walk.report(
            "error", f"{key}.{name}", "not for a variant: the entry that `of` names decides it"
        )
    if not entry.of:
        return
    base = bases.get(entry.of)
    if base is None:
        walk.report(
            "error", f"{key}.of", f'no entry is named "{entry.of}"{nearest(entry.of, bases)}'
        )
    elif base.of is not None:
        walk.report("error", f"{key}.of", f'"{entry.of}" is a variant itself; name its base')


def _check_settings(walk: Walk, part: Defaults, key: str) -> None:
    given = walk.given.get(key, frozenset())
    if part.mllm and part.kind not in (None, "vision"):
        walk.report("error", f"{key}.mllm", f"contradicts kind: {part.kind}")
    if (
        part.continuous_batching is False
        and "max_concurrency" in given
        and part.max_concurrency > 1
    ):
        walk.report(
            "warning",
            f"{key}.max_concurrency",
            "has no effect: continuous_batching: false makes it 1",
        )
    for place, message in warm.inline_problems(part.warm_prompts):
        walk.report("error", f"{key}.warm_prompts{place}", message)
    if part.enable_mtp:
        walk.report("warning", f"{key}.enable_mtp", "no effect yet: text is generated without it")
    speculative = [name for name in Defaults.__struct_fields__ if name.startswith("specprefill")]
    if written := [name for name in speculative if name in given]:
        walk.report("warning", f"{key}.{written[0]}", f"no effect yet: {', '.join(written)}")
    for name in part.env:
        if name.startswith(RESERVED_VARIABLE) or not name or "=" in name or "\0" in name:
            walk.report("error", f"{key}.env.{name}", "not a name that can be set for an engine")


def merged(walk: Walk, registry: Registry) -> Registry:
    """The registry with defaults in every entry, and a base's settings in its variants."""
    wanted = walk.given.get("defaults", frozenset()) & set(Defaults.__struct_fields__)
    entries: list[Entry] = []
    for index, entry in enumerate(registry.models):
        given = walk.given[f"models[{index}]"]
        named = given | {_RIVALS[name] for name in given if name in _RIVALS}
        fill = {name: getattr(registry.defaults, name) for name in wanted - named}
        entries.append(_settled(msgspec.structs.replace(entry, **fill)))
    bases = {entry.name: entry for entry in entries if entry.of is None}
    for index, entry in enumerate(entries):
        if entry.of is not None:
            own = walk.given[f"models[{index}]"] & VARIANT_KEYS
            keep = {name: getattr(entry, name) for name in own | {"name", "of", "aliases"}}
            keep.setdefault("description", "")
            entries[index] = msgspec.structs.replace(bases[entry.of], **keep)
    return msgspec.structs.replace(registry, models=tuple(entries))


def _settled(entry: Entry) -> Entry:
    """The other spellings in terms of the keys that count."""
    settled: dict[str, object] = {}
    if entry.mllm:
        settled["kind"] = "vision"
    if entry.continuous_batching is False:
        settled["max_concurrency"] = 1
    return msgspec.structs.replace(entry, **settled)
