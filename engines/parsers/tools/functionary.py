"""Functionary v2: every part of a message names its recipient; "all" is the user.

Version 3.1 writes `<function=name>{...}</function>` instead.
"""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers.json_calls import arguments
from engines.parsers.readers.tagged import FUNCTION, read_function
from engines.parsers.source import NAME, Read

_FROM, _RECIPIENT, _CONTENT = "<|from|>", "<|recipient|>", "<|content|>"
USER = "all"


def _read_from(reading: Reading) -> Read[None]:
    yield from reading.source.space()
    yield from reading.source.expect("assistant")
    yield from _read_after_role(reading)


def _read_after_role(reading: Reading) -> Read[None]:
    yield from reading.source.space()
    yield from reading.source.expect(_RECIPIENT)
    yield from _read_recipient(reading)


def _read_recipient(reading: Reading) -> Read[None]:
    source = reading.source
    yield from source.space()
    recipient = yield from source.run(NAME)
    yield from source.space()
    yield from source.expect(_CONTENT)
    if recipient != USER:
        yield from arguments(reading, recipient)


FORMAT = ToolFormat(
    names=("functionary", "meetkai"),
    openers={
        _FROM: _read_from,
        _RECIPIENT: _read_recipient,
        FUNCTION.body_open: read_function,
    },
    closers=("<|stop|>", "</function>", "<|eot_id|>"),
    prompt_openers={f"{_FROM}assistant": _read_after_role, _RECIPIENT: _read_recipient},
    hints=Hints(template=((_RECIPIENT, _CONTENT),)),
)
