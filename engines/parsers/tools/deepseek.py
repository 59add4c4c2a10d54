"""What DeepSeek V3 and V3.1 share: the markers, with U+FF5C and U+2581, not ASCII.

V3 writes `function<sep>name`, a line end and fenced JSON; V3.1 writes `name<sep>` and JSON.
Distilled checkpoints mix the two, so the body decides.
"""

import re

from engines.parsers.formats import Hints, Reading
from engines.parsers.readers import wrapper
from engines.parsers.readers.json_calls import arguments
from engines.parsers.source import NAME, NotACall, Read


def token(name: str) -> str:
    """A special token of DeepSeek, spelled with its own bar and space."""
    return "<\uff5c" + name.replace(" ", "\u2581") + "\uff5c>"


_CALLS_BEGIN = token("tool calls begin")
_CALL_BEGIN = token("tool call begin")
_SEPARATOR = token("tool sep")
_FENCE = "```"
_LANGUAGE = re.compile(r"\w*")


def read_call(reading: Reading) -> Read[None]:
    """Behind the beginning of one call."""
    source = reading.source
    yield from source.space()
    name = yield from source.run(NAME)
    yield from source.space()
    yield from source.expect(_SEPARATOR)
    if (yield from source.space()) != "{":
        name = yield from _name_and_fence(reading, name)
    yield from arguments(reading, name)


def _name_and_fence(reading: Reading, kind: str) -> Read[str]:
    """The name behind the separator, where a fence with nothing before it has it before that."""
    source = reading.source
    name = yield from source.run(NAME)
    yield from source.space()
    if (yield from source.accept(_FENCE)):
        yield from source.run(_LANGUAGE)
    elif not name:
        raise NotACall
    return name or kind


OPENERS = {_CALLS_BEGIN: wrapper.before(_CALL_BEGIN), _CALL_BEGIN: read_call}
CLOSERS = (
    _FENCE,
    token("tool call end"),
    token("tool calls end"),
    token("end of sentence"),
)
HINTS = Hints(template=((_CALLS_BEGIN,),), vocabulary=((_CALLS_BEGIN, _CALL_BEGIN, _SEPARATOR),))
