"""Tags around calls that have markers of their own: they are swallowed where a call follows."""

from __future__ import annotations

from engines.parsers.formats import Reader, Reading
from engines.parsers.scanner import Markers
from engines.parsers.source import EndOfText, NotACall, Read


def before(*inner: str, prose: int = 0) -> Reader:
    """A reader that steps over its marker if one of `inner` follows.

    Up to `prose` characters may lie between them where the marker begins a line: models announce
    a call behind the opening tag.
    """
    markers = Markers(inner)

    def read(reading: Reading) -> Read[None]:
        source = reading.source
        yield from source.space()
        start = source.pos
        if (yield from source.accept(*inner)):
            source.pos = start
        elif prose and _begins_line(reading):
            yield from _wait_for(reading, markers, prose)
        else:
            raise EndOfText if source.at_end() else NotACall

    return read


def _wait_for(reading: Reading, markers: Markers, prose: int) -> Read[None]:
    source = reading.source
    while True:
        found = markers.find(source, source.pos)
        if found is not None and found[0] - source.pos <= prose:
            return
        if found is not None or markers.open_from(source, source.pos) - source.pos > prose:
            raise NotACall
        yield from source.more()


def _begins_line(reading: Reading) -> bool:
    return reading.source.text[: reading.mark][-1:] in ("", "\n")
