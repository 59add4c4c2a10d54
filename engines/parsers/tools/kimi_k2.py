"""Kimi K2: calls in a section, each with an id that holds the name, `functions.name:0`."""

import re

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers import wrapper
from engines.parsers.readers.json_calls import arguments
from engines.parsers.source import NAME, EndOfText, Read

SECTION_BEGIN = "<|tool_calls_section_begin|>"
_SECTION_BEGIN_SINGULAR = "<|tool_call_section_begin|>"
CALL_BEGIN = "<|tool_call_begin|>"
_ARGUMENT_BEGIN = "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"
_ID = re.compile(r"(?:functions\.)?(.+):\d+")


def read_call(reading: Reading) -> Read[None]:
    """Behind the beginning of one call. Without an id of the right form one is made."""
    source = reading.source
    yield from source.space()
    call_id = yield from source.run(NAME)
    yield from source.space()
    yield from source.expect(_ARGUMENT_BEGIN)
    found = _ID.fullmatch(call_id)
    name = found.group(1) if found else call_id.removeprefix("functions.")
    yield from source.space()
    start = source.pos
    if (yield from source.accept(_CALL_END)) or source.at_end():
        if source.pos == start and not source.natural:
            raise EndOfText
        source.pos = start
        reading.writer.start(name, call_id if found else "")
        reading.writer.write("{}")
        reading.end_call()
    else:
        yield from arguments(reading, name, call_id if found else "")


_before_call = wrapper.before(CALL_BEGIN)

FORMAT = ToolFormat(
    names=("kimi_k2", "kimi", "moonshot"),
    openers={
        SECTION_BEGIN: _before_call,
        _SECTION_BEGIN_SINGULAR: _before_call,
        CALL_BEGIN: read_call,
    },
    closers=(
        _CALL_END, "<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|im_end|>",
    ),
    hints=Hints(
        template=((SECTION_BEGIN,),),
        vocabulary=((SECTION_BEGIN, CALL_BEGIN, _ARGUMENT_BEGIN),),
    ),
)  # fmt: skip
