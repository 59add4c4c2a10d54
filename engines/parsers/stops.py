"""Stop strings on streamed text: what may be shown, what must wait, where the text ends.

Invariant: the text given out so far plus the text held back is the text fed, and the held-back
text is the longest suffix that could still grow into a stop string. So a match is found whole
however the text was cut, and nothing is delayed that no stop string could claim.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Looks for the first of `stops` in one text. Empty stop strings are ignored.

    The match that is complete first wins; of those complete at the same character, the longest.
    So the answer is the same however the text is cut, and never waits for more text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Returns the text that may be shown now, and the stop string that matched or None.

        After a match the shown text ends right before it, the rest is dropped, and the scanner is
        done: it must not be fed again.
        """
        if not self._stops:
            return text, None
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            self._held = ""
            start, stop = found
            return text[:start], stop
        keep = self._open_suffix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """The text held back, due when generation ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        matches = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _open_suffix(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            suffix = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
