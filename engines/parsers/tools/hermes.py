"""Hermes 2 and later, and what was trained after them: a JSON object in `<tool_call>` tags.

Some checkpoints put Qwen3-Coder's XML into the same tags, so the body decides.
"""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers.json_calls import json_calls
from engines.parsers.readers.tagged import FUNCTION, read_function
from engines.parsers.source import Read


def read_tool_call(reading: Reading) -> Read[None]:
    """Behind `<tool_call>`: JSON, or `<function=`."""
    yield from reading.source.space()
    if (yield from reading.source.accept(FUNCTION.body_open)):
        yield from read_function(reading)
    else:
        yield from json_calls(reading)


FORMAT = ToolFormat(
    names=("hermes", "nous"),
    openers={"<tool_call>": read_tool_call},
    closers=("</tool_call>", "}"),
    hints=Hints(template=(("<tool_call>",),), vocabulary=(("<tool_call>", "</tool_call>"),)),
)
