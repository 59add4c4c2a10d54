"""Decides how many prompt tokens one step takes in, so that no step is longer than its target.

While a prompt is taken in, the rows that decode wait: one decode step, one chunk of prompts, in
turn. The size of the chunk is learned from how long the last ones took. Pure: times are given.

Invariant: the size is always within `LEAST` and `MOST` tokens, and grows at most twofold at a
time, because what few tokens cost says little of what many will.
"""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST = 64
MOST = 2048
"""Tokens of one chunk. Fewer use the device badly; more gain nothing and take memory."""

FIRST = 256
REMEMBERED = 3
"""Times of which the middle one counts: one outlier, such as compiling kernels, changes nothing."""


class StepSizer:
    """Sizes chunks for steps of `target_s` seconds; with `fixed` tokens it has nothing to decide.

    A chunk has the tokens of all prompts in it, padding included.
    """

    def __init__(self, target_s: float, fixed: int | None = None) -> None:
        self._target_s = target_s
        self._fixed = fixed
        self._tokens = FIRST
        self._decode_s: deque[float] = deque(maxlen=REMEMBERED)
        self._cost_s: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def most(self) -> int:
        """Tokens of the largest chunk there can be of one prompt."""
        return self._fixed or MOST

    def size(self, prompts: int) -> int:
        """Tokens of each of so many prompts that the next chunk takes in."""
        return self._fixed or max(1, self._tokens // max(1, prompts))

    def decoded(self, seconds: float) -> None:
        """A step without a chunk took so long."""
        self._decode_s.append(seconds)

    def took_in(self, tokens: int, seconds: float, *, decoding: bool) -> None:
        """A step with a chunk of `tokens` took `seconds`; `decoding` when rows decoded in it too.

        The end of a prompt, much shorter than a whole chunk, counts only if it took too long.
        """
        if tokens * 2 < self._tokens and seconds <= self._target_s:
            return
        decode_s = median(self._decode_s) if decoding and self._decode_s else 0.0
        # A decode step that was guessed too long must not make prompts look free.
        self._cost_s.append(max(seconds - decode_s, seconds / 4) / max(1, tokens))
        room_s = max(self._target_s - decode_s, 0.0)
        cost_s = median(self._cost_s)
        fit = MOST if room_s >= MOST * cost_s else int(room_s / cost_s)
        self._tokens = max(LEAST, min(fit, 2 * self._tokens))
