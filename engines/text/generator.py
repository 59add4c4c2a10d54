"""What turns prompts into tokens: one of two generators, and how many rows each takes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mlx_lm.generate import BatchGenerator

from engines.text.model import LoadedModel
from engines.text.processors import Processor
from engines.text.prompt_cache import Layers
from engines.text.sampling import Sampler
from engines.text.serial import SerialGenerator

MAX_ROWS = 32
"""Rows in one batch. A model may be granted more calls than that; the rest wait here for a row."""

PREFILL_ROWS = 2
"""Prompts in prefill at a time: few, so that decoding rows wait for little, and more than one, so
that a short prompt is not stuck behind a long one."""


class Generator(Protocol):
    """What is used of `mlx_lm.generate.BatchGenerator`.

    `prefill_step_size` is read at each step, up to the one it was built with.
    """

    prefill_step_size: int

    def insert_segments(
        self,
        segments: Sequence[list[list[int]]],
        *,
        max_tokens: Sequence[int],
        caches: Sequence[Layers | None],
        all_tokens: Sequence[list[int]],
        samplers: Sequence[Sampler],
        logits_processors: Sequence[list[Processor]],
    ) -> list[int]: ...
    def next(self) -> tuple[Sequence[Any], Sequence[Any]]: ...
    def extract_cache(self, uids: Sequence[int]) -> dict[int, tuple[Layers, list[int]]]: ...
    def remove(
        self, uids: Sequence[int], return_prompt_caches: bool = False
    ) -> dict[int, tuple[Layers, list[int]]]: ...
    @property
    def prompt_cache_nbytes(self) -> int: ...
    def close(self) -> None: ...


def rows_of(loaded: LoadedModel) -> int:
    """Rows that may run at a time."""
    return MAX_ROWS if loaded.batchable else 1


def build_generator(loaded: LoadedModel, prefill_step_size: int) -> Generator:
    """`prefill_step_size` is the most tokens of one prompt in one step."""
    stops = sorted(loaded.tokenizer.eos_token_ids)
    if not loaded.batchable:
        return SerialGenerator(loaded.model, stop_tokens=stops, prefill_step_size=prefill_step_size)
    generator: Generator = BatchGenerator(
        loaded.model,
        stop_tokens=[[token] for token in stops],
        completion_batch_size=rows_of(loaded),
        prefill_batch_size=PREFILL_ROWS,
        prefill_step_size=prefill_step_size,
    )
    return generator
