"""Qwen 2.5 and 3: as Hermes, and `[Calling tool: name({...})]` as some checkpoints write it."""

from engines.parsers.formats import Reading, ToolFormat
from engines.parsers.readers.json_calls import arguments
from engines.parsers.source import NAME, Read
from engines.parsers.tools.hermes import read_tool_call

BRACKET = "[Calling tool:"


def read_bracket(reading: Reading) -> Read[None]:
    """Behind `[Calling tool:`."""
    source = reading.source
    yield from source.space()
    name = yield from source.run(NAME)
    yield from source.expect("(")
    yield from arguments(reading, name)


FORMAT = ToolFormat(
    names=("qwen", "qwen3"),
    openers={"<tool_call>": read_tool_call, BRACKET: read_bracket},
    closers=("</tool_call>", "}", ")]"),
)
