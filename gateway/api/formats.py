"""What an answer has to look like: response formats to the neutral form."""

from __future__ import annotations

from typing import Any

from engines import wire
from gateway.api.decode import check_plain
from gateway.errors import Unsupported

TEXT = wire.Format()
JSON = wire.Format("json_object")


def named_format(
    kind: str, schema: dict[str, Any] | bool | None, path: str, schema_path: str
) -> wire.Format:
    """A format by its OpenAI name: text, json_object, json_schema; `path` is where that name is.

    A schema is enforced whether it is called strict or not. Raises `Unsupported` for another name,
    `InvalidRequest` for a schema that cannot travel.
    """
    match kind:
        case "text":
            return TEXT
        case "json_object":
            return JSON
        case "json_schema" if schema is None:
            return JSON
        case "json_schema":
            check_plain(schema, schema_path)
            return wire.Format("json_schema", schema)
        case _:
            raise Unsupported(
                f"{path}: {kind[:100]!r} is not served; use text, json_object or json_schema",
                param=path,
            )
