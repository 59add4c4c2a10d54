"""Calls as GLM writes them: `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>...`."""

from __future__ import annotations

import re

from engines.parsers.formats import Reading
from engines.parsers.readers.json_calls import json_calls
from engines.parsers.readers.tagged import Tags, Values, read_value
from engines.parsers.source import NAME, EndOfText, NotACall, Read

TAGS = Tags(
    body_open="<tool_call>",
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_close="</arg_value>",
    body_close="</tool_call>",
    wrapper_open="<tool_call>",
    wrapper_close="</tool_call>",
)
_VALUE_OPEN = "<arg_value>"
_KEY = re.compile(r"[^<]*")


def read_arg_keys(reading: Reading) -> Read[None]:
    """Behind `<tool_call>`: the name of the tool, then pairs of tagged key and value."""
    source = reading.source
    if (yield from source.space()) in ("{", "["):
        yield from json_calls(reading)
        return
    name = yield from source.run(NAME)
    yield from source.space()
    following = yield from source.accept(TAGS.key_open, TAGS.body_close)
    if not following:
        if not source.at_end():
            raise NotACall
        if not source.natural or not reading.tools.declares(name):
            raise EndOfText
    reading.writer.start(name)
    values = Values(reading, name, guess=True)
    while following == TAGS.key_open:
        key = (yield from source.run(_KEY)).strip()
        while (yield from source.accept(TAGS.key_close)):
            yield from source.space()
        yield from source.expect(_VALUE_OPEN)
        values.add(key, (yield from read_value(source, TAGS, values)))
        yield from source.space()
        following = yield from source.accept(TAGS.key_open, TAGS.body_close)
    values.end()
