"""The registry file as frozen structs: every key, its meaning, its bounds, its default.

This is the one place where a key exists; loading, `check`, the example and the documentation
follow from it.
"""

from __future__ import annotations

from typing import Annotated

from gateway.registry.schema.manager import ContentionPolicy, Manager
from gateway.registry.schema.models import (
    ORIGINS,
    VARIANT_KEYS,
    Defaults,
    Entry,
    ExitStep,
    Scripted,
)
from gateway.registry.schema.server import ApiKey, Server
from gateway.registry.schema.values import (
    SIZE,
    Kind,
    Part,
    ReasoningParser,
    Reload,
    Right,
    ToolParser,
    fields_of,
    is_size,
    live,
    reload_of,
)

__all__ = [
    "ORIGINS",
    "SIZE",
    "VARIANT_KEYS",
    "ApiKey",
    "ContentionPolicy",
    "Defaults",
    "Entry",
    "ExitStep",
    "Kind",
    "Manager",
    "ReasoningParser",
    "Registry",
    "Reload",
    "Right",
    "Scripted",
    "Server",
    "ToolParser",
    "fields_of",
    "is_size",
    "reload_of",
]


class Registry(Part, frozen=True, kw_only=True):
    """The whole file."""

    manager: Annotated[Manager, live("the memory budget and how models share it")] = Manager()
    server: Annotated[Server, live("the listener")] = Server()
    defaults: Annotated[Defaults, live("keys that count for every model")] = Defaults()
    models: Annotated[tuple[Entry, ...], live("the models")] = ()
