"""From the bytes of a body to a checked struct: the one place where bad input becomes a 400."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from gateway.errors import InvalidRequest

MAX_DEPTH = 32
"""How deep free JSON, such as a tool's schema, may be nested."""

_T = TypeVar("_T")

_AT = re.compile(r"^(?P<what>.*) - at (?:`(?P<key>key)` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")


class BodyDecoder(Generic[_T]):
    """Decodes JSON into one struct type. Raises `InvalidRequest`, naming the field."""

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> _T:
        try:
            # msgspec lets broken UTF-8 pass in fields that it skips.
            body.decode("utf-8")
            return self._decode(body)
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"the body is not valid UTF-8: byte {error.start} cannot be decoded"
            ) from None
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
        except msgspec.ValidationError as error:
            raise _named(str(error)) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is not valid JSON: {error}") from None

    def _decode(self, body: bytes) -> _T:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
        # Some clients write integers as `10.0`, which JSON does not tell from `10`.
        return msgspec.convert(_integral(msgspec.json.decode(body)), self._kind, str_keys=True)


def from_texts(values: Mapping[str, object], kind: type[_T]) -> _T:
    """A struct from the fields of a form, whose values are texts. Raises as `BodyDecoder`."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None


def check_plain(value: Any, path: str) -> None:
    """Free JSON has to fit the wire. Raises `InvalidRequest` with the field `path`."""
    if not _is_plain(value, MAX_DEPTH):
        raise InvalidRequest(f"{path}: nested too deeply, or a number beyond 64 bits", param=path)


def _is_plain(value: Any, depth: int) -> bool:
    """Whether an engine can be told it: its msgpack knows integers of 64 bits only."""
    match value:
        case dict():
            return depth > 0 and all(_is_plain(item, depth - 1) for item in value.values())
        case list():
            return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
        case int():
            return -(2**63) <= value < 2**64
        case _:
            return True


def _integral(value: Any, depth: int = 2) -> Any:
    """Whole floats as integers, in objects only: no integer field lies deeper or in a list."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict) and depth:
        return {key: _integral(item, depth - 1) for key, item in value.items()}
    return value


def _named(message: str) -> InvalidRequest:
    """msgspec's sentence turned round, so that it begins with the field at fault."""
    what, path = message, ""
    if found := _AT.match(message):
        what, path = found["what"], found["path"]
        if found["key"]:
            what = f"a key: {what[0].lower()}{what[1:]}"
    if missing := _MISSING.match(what):
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return InvalidRequest(f"{path}: this field is required", param=path)
    what = what[0].lower() + what[1:]
    return InvalidRequest(f"{path}: {what}" if path else f"the body: {what}", param=path or None)
