"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

The outer tag is often missing, and text may come between it and the function.
"""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers import wrapper
from engines.parsers.readers.json_calls import json_calls
from engines.parsers.readers.tagged import FUNCTION, read_function
from engines.parsers.source import Read

_ANNOUNCEMENT_CHARACTERS = 80

_before_function = wrapper.before(FUNCTION.body_open, prose=_ANNOUNCEMENT_CHARACTERS)


def read_tool_call(reading: Reading) -> Read[None]:
    """Behind `<tool_call>`: the function, or a JSON object as Hermes writes it."""
    if (yield from reading.source.space()) == "{":
        yield from json_calls(reading)
    else:
        yield from _before_function(reading)


OPENERS = {FUNCTION.wrapper_open: read_tool_call, FUNCTION.body_open: read_function}

FORMAT = ToolFormat(
    names=("qwen3_coder",),
    openers=OPENERS,
    closers=("</function>", "</tool_call>"),
    hints=Hints(template=(("<function=", "<parameter="),)),
)
