"""xLAM: a JSON list of calls, or `{"tool_calls": [...]}`, as the whole message, perhaps fenced."""

import re

from engines.parsers.formats import Reading, ToolFormat
from engines.parsers.json_text import read_json_text
from engines.parsers.readers.json_calls import (
    declared_json_calls,
    json_calls,
    read_list,
    whole_message,
)
from engines.parsers.source import Read

_FENCE = "```"
_LANGUAGE = re.compile(r"\w*")


def read_calls(reading: Reading) -> Read[None]:
    """The calls themselves."""
    source = reading.source
    start = source.pos
    if (yield from source.accept("{")) and (yield from source.space()) == '"':
        key = yield from read_json_text(source)
        if key == '"tool_calls"':
            yield from source.space()
            yield from source.expect(":")
            yield from source.space()
            yield from read_list(reading, any_tool=False)
            yield from source.space()
            yield from source.expect("}")
            return
    source.pos = start
    yield from declared_json_calls(reading)


def read_fenced(reading: Reading) -> Read[None]:
    """The calls in a code fence."""
    source = reading.source
    yield from source.expect(_FENCE)
    yield from source.run(_LANGUAGE)
    yield from source.space()
    yield from read_calls(reading)
    yield from source.space()
    yield from source.accept(_FENCE)


FORMAT = ToolFormat(
    names=("xlam",),
    openers={"<tool_call>": json_calls, "[TOOL_CALLS]": json_calls},
    bare={
        "[": whole_message(read_calls),
        "{": whole_message(read_calls),
        "`": whole_message(read_fenced),
    },
    closers=("</tool_call>", "[/TOOL_CALLS]"),
)
