"""Tool calls in a conversation, as chat templates take them: arguments as objects, results named.

Templates index into arguments and name the tool of a result, so both are made whole here, whatever
form the client's dialect gave them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api.decode import check_plain
from gateway.api.parts import Content
from gateway.errors import InvalidRequest


def arguments_object(arguments: str | dict[str, Any] | None, path: str) -> dict[str, Any]:
    """The arguments of a call; nothing at all means none.

    Raises `InvalidRequest` with the field `path` for text that is not one JSON object.
    """
    value: Any = arguments or {}
    if isinstance(value, str):
        value = _parsed(value, path) if value.strip() else {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path}: expected a JSON object", param=path)
    check_plain(value, path)
    return value


def _parsed(text: str, path: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path}: not valid JSON: {error}", param=path) from None
    except RecursionError:
        raise InvalidRequest(f"{path}: nested too deeply", param=path) from None


class Calls:
    """The tool calls of one conversation so far, so that each result finds its call."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def call(
        self, call_id: str, name: str, arguments: str | dict[str, Any] | None, path: str
    ) -> dict[str, Any]:
        """One call for `tool_calls` of an assistant message; `path` is where its arguments are.

        Raises `InvalidRequest` as `arguments_object`.
        """
        self._names[call_id] = name
        function = {"name": name, "arguments": arguments_object(arguments, path)}
        return {"id": call_id, "type": "function", "function": function}

    def result(self, call_id: str | None, content: Content, path: str) -> dict[str, Any]:
        """A whole tool message; `path` is where `call_id` is.

        Raises `InvalidRequest` for a result of no call.
        """
        if not call_id:
            raise InvalidRequest(
                f"{path}: a result has to name the call that it answers", param=path
            )
        if call_id not in self._names:
            raise InvalidRequest(f"{path}: no call before it has the id {call_id!r}", param=path)
        name = self._names[call_id]
        return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}
