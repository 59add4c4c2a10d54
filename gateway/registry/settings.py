"""Settings of the server: flag before variable before file before default. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.registry.problems import Problem
from gateway.registry.schema import Server, fields_of
from gateway.registry.walk import Left, Walk
from gateway.registry.yaml_tree import Node, Scalar, Sequence

VARIABLE_PREFIX = "MLX_GATEWAY_"

_FILE_ALONE = frozenset(("api_keys",))
"""Too much for one value; each key in it can come from a variable of its own."""


def server_settings(
    server: Server, *, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Server, tuple[Problem, ...]]:
    """`server` as the file has it, with what flags (by key, None if absent) and variables change.

    A value that is wrong is a problem and changes nothing. An empty variable counts as absent.
    """
    problems: list[Problem] = []
    changes: dict[str, Any] = {}
    for info in fields_of(Server).values():
        if info.name in _FILE_ALONE:
            continue
        flag = flags.get(info.name)
        variable = VARIABLE_PREFIX + info.name.upper()
        if flag is not None:
            written, source, key = str(flag), "command line", f"--{info.name.replace('_', '-')}"
        elif environ.get(variable):
            written, source, key = environ[variable], "environment", variable
        else:
            continue
        walk = Walk(source, {})
        value = walk.value(_node(written, is_list=isinstance(info.default, tuple)), info.type, key)
        problems += walk.problems
        if not isinstance(value, Left):
            changes[info.name] = value
    return msgspec.structs.replace(server, **changes), tuple(problems)


def _node(written: str, *, is_list: bool) -> Node:
    """A list is separated by commas."""
    if not is_list:
        return Scalar(written, True, 0)
    parts = (part.strip() for part in written.split(","))
    return Sequence(0, [Scalar(part, True, 0) for part in parts if part])
