"""How one row draws its tokens in mlx-vlm's generator, which has one sampler for all rows.

So the generator is greedy, and a row that is not draws in its own logits processor: what the
generator gets back leaves it one token to take. The row's log-probabilities are those before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engines.text.logprobs import Drawn, drawn
from engines.text.processors import Processor
from engines.text.sampling import Sampler


class Draw:
    """The only processor of its row; `processors` are applied first, in order.

    They see the whole prompt at the row's first step and the last token alone at every later one.
    With `logprobs` (how many alternatives; None for none) it keeps what was drawn until `take`.
    """

    def __init__(
        self, processors: Sequence[Processor], sampler: Sampler, logprobs: int | None
    ) -> None:
        self._processors = processors
        self._sampler = sampler
        self._most = logprobs
        self._drawn: deque[Any] = deque()
        """The generator draws one token ahead, so there are up to two."""

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """`tokens` [length], `logits` [1, vocabulary]; returns logits that leave one token."""
        for processor in self._processors:
            logits = processor(tokens, logits)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        token = self._sampler(logprobs)
        if self._most is not None:
            self._drawn.append(logprobs[0])
        only = mx.arange(logits.shape[-1])[None] == token[:, None]
        return mx.where(only, 0.0, -mx.inf).astype(logits.dtype)

    def process_last_token(self, token: int, logits: Any) -> Any:
        """What the generator calls at a decode step, so that it need not pass the whole row."""
        return self(mx.array([token]), logits)

    def take(self, token: int) -> Drawn | None:
        """The log-probabilities of the oldest token that was not taken yet, which is `token`."""
        if self._most is None:
            return None
        (found,) = drawn([self._drawn.popleft()], [token], self._most)
        return found
