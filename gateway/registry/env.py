"""`${env:NAME}` and `${env:NAME:-default}` in values. Pure: the environment is passed in."""

from __future__ import annotations

import re
from collections.abc import Mapping

_MARK = "${env:"
_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class EnvError(Exception):
    """A reference that cannot be replaced; the message never holds a value."""


def has_reference(text: str) -> bool:
    return _MARK in text


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """`text` with every reference replaced; the default also stands in for an empty variable.

    What a variable holds is taken as it is: references in it are not followed.
    Raises `EnvError` for a variable that is not set and has no default, or a malformed reference.
    """
    if _MARK in _REFERENCE.sub("", text):
        raise EnvError("malformed reference; write ${env:NAME} or ${env:NAME:-default}")

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            raise EnvError(
                f"environment variable {name} is not set; "
                f"set it or give a default: ${{env:{name}:-default}}"
            )
        return environ[name]

    return _REFERENCE.sub(value, text)
