"""mlx-lm's own parsers of tool calls, for families that `engines.parsers` has none for.

Each is one module with the markers of its family and a `parse_tool_call`. A module is imported when
a model is found to need it.
"""

from __future__ import annotations

import importlib
from typing import Any

from engines.parsers import upstream
from engines.parsers.formats import ToolFormat

_PACKAGE = "mlx_lm.tool_parsers"


def named(name: str | None) -> ToolFormat | None:
    """The format of one of `upstream.NAMES`; None for any other name."""
    if name not in upstream.NAMES:
        return None
    module: Any = importlib.import_module(f"{_PACKAGE}.{name}")
    return upstream.upstream_format(
        name, module.tool_call_start, module.tool_call_end, module.parse_tool_call
    )


def inferred(tokenizer: Any) -> ToolFormat | None:
    """What mlx-lm found in a tokenizer's template, vocabulary or configuration.

    `tokenizer` is an mlx-lm TokenizerWrapper.
    """
    if not tokenizer.has_tool_calling:
        return None
    parse = tokenizer.tool_parser
    name = parse.__module__.removeprefix(f"{_PACKAGE}.")
    return upstream.upstream_format(name, tokenizer.tool_call_start, tokenizer.tool_call_end, parse)
