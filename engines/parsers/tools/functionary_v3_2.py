"""Functionary v3.2: parts of a message begin with `>>>`, the recipient, and a line end."""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.readers.json_calls import arguments
from engines.parsers.source import NAME, Read
from engines.parsers.tools.functionary import USER

_MARKER = ">>>"


def _read_part(reading: Reading) -> Read[None]:
    source = reading.source
    recipient = yield from source.run(NAME)
    yield from source.expect("\n")
    if recipient != USER:
        yield from arguments(reading, recipient)


FORMAT = ToolFormat(
    names=("functionary_v3_2",),
    openers={_MARKER: _read_part},
    closers=("<|eot_id|>",),
    prompt_openers={_MARKER: _read_part},
    hints=Hints(template=((_MARKER, "<|start_header_id|>"),)),
)
