"""Mistral and Devstral: `[TOOL_CALLS]name[ARGS]{...}`, or a JSON list behind the marker.

Its templates refuse a history whose call ids are not nine letters and digits.
"""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers.json_calls import arguments, json_calls
from engines.parsers.source import NAME, Read

MARKER = "[TOOL_CALLS]"
_ARGS, _CALL_ID = "[ARGS]", "[CALL_ID]"
_ID_CHARACTERS = 9


def read_calls(reading: Reading) -> Read[None]:
    """Behind `[TOOL_CALLS]`."""
    source = reading.source
    if (yield from source.space()) in ("[", "{"):
        yield from json_calls(reading)
        return
    name = yield from source.run(NAME)
    while name:
        yield from _read_named(reading, name)
        end = source.pos
        yield from source.space()
        # One marker may stand before several calls.
        name = yield from source.run(NAME)
        if not (yield from source.accept(_ARGS)):
            source.pos = end
            return
        source.pos -= len(_ARGS)
    yield from source.expect(_ARGS)


def _read_named(reading: Reading, name: str) -> Read[None]:
    source = reading.source
    call_id = ""
    yield from source.space()
    if (yield from source.accept(_CALL_ID)):
        call_id = yield from source.run(NAME)
    # Without special tokens in the text, the arguments follow the name at once.
    yield from source.accept(_ARGS)
    yield from arguments(reading, name, call_id)


def short_id(call_id: str) -> str:
    """Nine letters and digits made of `call_id`."""
    kept = "".join(filter(str.isalnum, call_id))
    return kept[-_ID_CHARACTERS:].rjust(_ID_CHARACTERS, "0")


FORMAT = ToolFormat(
    names=("mistral",),
    openers={MARKER: read_calls},
    call_id=short_id,
    hints=Hints(template=((MARKER,),), vocabulary=((MARKER,),)),
)
