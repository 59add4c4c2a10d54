"""Tools of a request, however its dialect spells them, in the one form that chat templates take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines import wire
from gateway.api.decode import check_plain
from gateway.errors import InvalidRequest

MAX_TOOLS = 1024
MAX_NAME = 256

_NO_PARAMETERS = {"type": "object", "properties": {}}


def declared(
    name: str, description: str | None, parameters: dict[str, Any] | None, path: str
) -> dict[str, Any]:
    """One tool in the OpenAI form. Raises `InvalidRequest` when `parameters` cannot travel.

    `path` is where its parameters are in the request. Templates read the properties of the
    parameters, so a tool without any gets an empty object.
    """
    check_plain(parameters, path)
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or _NO_PARAMETERS
    return {"type": "function", "function": function}


def chosen(
    tools: Sequence[dict[str, Any]], choice: wire.ToolChoice, param: str = "tool_choice"
) -> list[dict[str, Any]]:
    """The tools that the model is shown under `choice`: none of them under "none".

    Raises `InvalidRequest` with `param` for a choice that these tools do not allow.
    """
    match choice.mode:
        case "none":
            return []
        case "required" if not tools:
            raise InvalidRequest(f"{param}: a call is required and there are no tools", param=param)
        case "named" if not any(tool_name(tool) == choice.name for tool in tools):
            raise InvalidRequest(
                f"{param}: {choice.name!r} is not among the tools of this request", param=param
            )
        case _:
            return list(tools)


def tool_name(tool: dict[str, Any]) -> str:
    name: str = tool["function"]["name"]
    return name
