"""What would change if one registry replaced another, and what each change costs. Pure.

A change costs a restart of the model's process where the schema says so, or where the files of
the model are others; else it takes effect while the model runs. Only what counts is compared:
two spellings of one folder or one kind are no restart. Variants have no process, so theirs is
never touched by a change of a variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from gateway.registry import diff_text
from gateway.registry.find import Model
from gateway.registry.load import Loaded
from gateway.registry.schema import (
    ORIGINS,
    VARIANT_KEYS,
    Entry,
    Manager,
    Registry,
    Reload,
    Server,
    fields_of,
    reload_of,
)

What = Literal["added", "removed", "restarted", "changed", "kept"]

_PLACES = frozenset(ORIGINS) - {"engine"}
_OTHER_SPELLINGS = frozenset(("mllm", "continuous_batching"))
"""`kind` and `max_concurrency` say the same."""

_COMPARED_APART = _PLACES | _OTHER_SPELLINGS | {"name", "of", "kind"}


class Field(msgspec.Struct, frozen=True):
    """One key that differs, such as `ttl_s` or `scripted.load_s`; values of `env` are not shown.

    `files` stands for the model's files, `unavailable` for the reason why it cannot be loaded.
    """

    key: str
    reload: Reload
    old: Any
    new: Any


class ModelChange(msgspec.Struct, frozen=True):
    """What becomes of one entry. A name can be both removed and added, in that order."""

    name: str
    what: What
    of: str | None = None
    fields: tuple[Field, ...] = ()

    @property
    def runs_on(self) -> bool:
        """Its process, if there is one, is not touched."""
        return self.what in ("changed", "kept")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Every difference. `models` has the removed entries first, then the new file's order.

    Budgets are those that count on this machine, in bytes.
    """

    models: tuple[ModelChange, ...] = ()
    manager: tuple[Field, ...] = ()
    server: tuple[Field, ...] = ()
    old_budget_bytes: int | None = None
    new_budget_bytes: int | None = None

    @property
    def empty(self) -> bool:
        """There is no difference."""
        return (
            all(model.what == "kept" for model in self.models)
            and not self.manager
            and not self.server
            and self.old_budget_bytes == self.new_budget_bytes
        )

    def names(self, what: What) -> tuple[str, ...]:
        return tuple(model.name for model in self.models if model.what == what)

    @property
    def needs_service_restart(self) -> tuple[str, ...]:
        """Keys of `server` that need a new listener, so that a reload cannot apply them."""
        return tuple(field.key for field in self.server if field.reload == "restart")

    def lines(self) -> list[str]:
        """The plan for people: a table of what differs, then what it means."""
        return diff_text.lines(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_builtins(self) -> dict[str, Any]:
        """The plan for programs, ready to be JSON."""
        whats: tuple[What, ...] = ("added", "removed", "restarted", "changed", "kept")
        return {
            "differs": not self.empty,
            **{what: list(self.names(what)) for what in whats},
            "models": [msgspec.to_builtins(m) for m in self.models if m.what != "kept"],
            "manager": msgspec.to_builtins(self.manager),
            "server": msgspec.to_builtins(self.server),
            "needs_service_restart": [f"server.{key}" for key in self.needs_service_restart],
            "budget_bytes": {"old": self.old_budget_bytes, "new": self.new_budget_bytes},
        }


def compare(old: Loaded, new: Loaded) -> Plan:
    """The plan from `old` to `new`, neither of which may have errors (`ValueError`).

    `server` is compared as the registries have it: a caller with flags or variables that override
    the file puts the settings in force there first.
    """
    before, after = _served(old), _served(new)
    return Plan(
        models=tuple(_models(old.models, new.models)),
        manager=tuple(_fields(Manager, before.manager, after.manager)),
        server=tuple(_fields(Server, before.server, after.server)),
        old_budget_bytes=old.budget_bytes,
        new_budget_bytes=new.budget_bytes,
    )


def _served(loaded: Loaded) -> Registry:
    if loaded.registry is None:
        raise ValueError("a registry with errors cannot be compared")
    return loaded.registry


def _models(old: tuple[Model, ...], new: tuple[Model, ...]) -> Iterator[ModelChange]:
    before = {model.entry.name: model for model in old}
    after = {model.entry.name: model for model in new}
    for name, model in before.items():
        if name not in after or after[name].entry.of != model.entry.of:
            yield ModelChange(name, "removed", model.entry.of)
    for name, model in after.items():
        if name not in before or before[name].entry.of != model.entry.of:
            yield ModelChange(name, "added", model.entry.of)
        else:
            fields = tuple(_model_fields(before[name], model))
            yield ModelChange(name, _what(fields), model.entry.of, fields)


def _what(fields: tuple[Field, ...]) -> What:
    if any(field.reload == "restart" for field in fields):
        return "restarted"
    return "changed" if fields else "kept"


def _model_fields(old: Model, new: Model) -> Iterator[Field]:
    """What differs between two entries of one name that are both bases or variants of one."""
    if new.entry.of is not None:
        for field in _fields(Entry, old.entry, new.entry):
            if field.key.split(".")[0] in VARIANT_KEYS:
                yield field
        return
    yield from _files(old, new)
    yield from _kind(old, new)
    for field in _fields(Entry, old.entry, new.entry):
        if field.key not in _COMPARED_APART:
            yield field


def _files(old: Model, new: Model) -> Iterator[Field]:
    """Where the model is, what is there, and whether it can be loaded."""
    known = old.path is not None and new.path is not None
    same_folder = known and old.path == new.path
    respelled = [name for name in _PLACES if getattr(old.entry, name) != getattr(new.entry, name)]
    for name in sorted(respelled):
        cost: Reload = "live" if same_folder else "restart"
        yield Field(name, cost, getattr(old.entry, name), getattr(new.entry, name))
    if known and not same_folder and not respelled:
        yield Field("files", "restart", str(old.path), str(new.path))
    elif same_folder and old.size and new.size and old.size.fingerprint != new.size.fingerprint:
        yield Field("files", "restart", old.size.fingerprint, new.size.fingerprint)
    if old.unavailable != new.unavailable:
        # Files that went away are no reason to end a process that has them in memory; of files
        # that came it is not known whether they are the ones that a process may have loaded.
        appeared = new.unavailable is None
        yield Field(
            "unavailable", "restart" if appeared else "live", old.unavailable, new.unavailable
        )


def _kind(old: Model, new: Model) -> Iterator[Field]:
    """Kinds that a folder without files could not give are no change."""
    guessed = any(model.kind_detected and model.size is None for model in (old, new))
    both_detected = old.kind_detected and new.kind_detected
    if old.entry.kind != new.entry.kind and not (guessed and both_detected):
        yield Field("kind", "restart", old.entry.kind, new.entry.kind)


def _fields(
    part: type[msgspec.Struct], old: msgspec.Struct, new: msgspec.Struct, prefix: str = ""
) -> Iterator[Field]:
    """Keys of `part` that differ, parts within it by their own keys."""
    for name in fields_of(part):
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, msgspec.Struct) and type(before) is type(after):
            yield from _fields(type(before), before, after, f"{prefix}{name}.")
        elif before == after and isinstance(before, bool) == isinstance(after, bool):
            continue  # the kinds, because 1 equals true
        elif name == "env":
            yield from _secrets("env", reload_of(Entry, "env"), before, after)
        elif name == "api_keys":
            by_name = [{key.name: key for key in keys} for keys in (before, after)]
            yield from _secrets("api_keys", reload_of(part, name), *by_name)
        else:
            old_value, new_value = msgspec.to_builtins((before, after))
            yield Field(prefix + name, reload_of(part, name), old_value, new_value)


def _secrets(
    key: str, cost: Reload, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Field]:
    """By name and without values, which are secrets or may be."""
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            after = "changed" if name in old else "set"
            yield Field(
                f"{key}.{name}",
                cost,
                "set" if name in old else None,
                after if name in new else None,
            )
