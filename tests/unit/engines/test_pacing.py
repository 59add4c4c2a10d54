"""Chunk sizes on devices that are only figures: what a chunk costs is given, no time passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.pacing import LEAST, MOST, StepSizer

TARGET_S = 0.15
ENOUGH = 60
"""Chunks after which a size has settled, for every device below."""

Device = Callable[[int], float]
"""Seconds that a chunk of so many tokens takes."""


def device(fixed_s: float, per_token_s: float) -> Device:
    return lambda tokens: fixed_s + tokens * per_token_s


def take_in(sizer: StepSizer, costs: Device, chunks: int = 1, decode_s: float = 0.0) -> int:
    """Whole chunks of one prompt; returns the size that follows."""
    for _ in range(chunks):
        if decode_s:
            sizer.decoded(decode_s)
        tokens = sizer.size(1)
        sizer.took_in(tokens, costs(tokens) + decode_s, decoding=decode_s > 0)
    return sizer.size(1)


DEVICES = st.builds(device, st.floats(0, 0.1), st.floats(1e-6, 1e-2))


@given(DEVICES, st.floats(0, 0.1))
def test_sizes_settle_on_the_largest_that_keeps_the_target(costs: Device, decode_s: float) -> None:
    sizer = StepSizer(TARGET_S)
    size = take_in(sizer, costs, ENOUGH, decode_s)
    if size > LEAST:
        assert costs(size) + decode_s <= TARGET_S * 1.03
    if size < MOST:
        assert costs(size) + decode_s >= TARGET_S * 0.97


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("decoded"), st.floats(0, 10)),
            st.tuples(st.integers(0, 4096), st.floats(0, 10)),
        ),
        max_size=40,
    ),
    st.integers(0, 8),
)
def test_whatever_is_measured_sizes_stay_within_bounds(
    steps: list[tuple[str | int, float]], prompts: int
) -> None:
    sizer = StepSizer(TARGET_S)
    before = sizer.size(1)
    for what, seconds in steps:
        if isinstance(what, int):
            sizer.took_in(what, seconds, decoding=bool(what % 2))
        else:
            sizer.decoded(seconds)
        size = sizer.size(1)
        assert LEAST <= size <= MOST
        assert size <= 2 * before
        assert size >= sizer.size(prompts) * max(1, prompts)
        before = size


@given(DEVICES, st.floats(1, 100))
def test_an_outlier_changes_nothing_for_long(costs: Device, outlier_s: float) -> None:
    sizer = StepSizer(TARGET_S)
    settled = take_in(sizer, costs, ENOUGH)
    sizer.took_in(sizer.size(1), outlier_s, decoding=False)
    assert sizer.size(1) == pytest.approx(settled, rel=0.05)
    assert take_in(sizer, costs, ENOUGH) == pytest.approx(settled, rel=0.05)


def test_a_device_that_slows_down_is_followed() -> None:
    sizer = StepSizer(TARGET_S)
    fast, slow = device(0.01, 1e-4), device(0.01, 1e-3)
    assert take_in(sizer, fast, ENOUGH) == pytest.approx(1400, rel=0.02)
    assert take_in(sizer, slow, 2) < 300
    assert take_in(sizer, slow, ENOUGH) == pytest.approx(140, rel=0.02)
    assert take_in(sizer, device(0.01, 1e-5), ENOUGH) == MOST


def test_a_first_chunk_that_compiles_kernels_is_soon_forgotten() -> None:
    sizer = StepSizer(TARGET_S)
    sizer.took_in(sizer.size(1), 5.0, decoding=False)
    assert sizer.size(1) == LEAST
    assert take_in(sizer, device(0, 1e-4), ENOUGH) == pytest.approx(1500, rel=0.02)


def test_a_chunk_shares_the_step_with_the_rows_that_decode() -> None:
    alone = take_in(StepSizer(TARGET_S), device(0, 1e-3), ENOUGH)
    beside = take_in(StepSizer(TARGET_S), device(0, 1e-3), ENOUGH, decode_s=0.05)
    assert (alone, beside) == pytest.approx((150, 100), rel=0.02)


def test_where_decoding_alone_takes_the_step_prompts_still_get_on() -> None:
    assert take_in(StepSizer(TARGET_S), device(0, 1e-4), ENOUGH, decode_s=0.3) == LEAST


def test_the_rest_of_a_prompt_says_nothing_unless_it_took_too_long() -> None:
    sizer = StepSizer(TARGET_S)
    size = take_in(sizer, device(0.01, 1e-4), ENOUGH)
    for _ in range(10):
        sizer.took_in(3, 0.02, decoding=False)
    assert sizer.size(1) == size
    for _ in range(10):
        sizer.took_in(3, 0.5, decoding=False)
    assert sizer.size(1) == LEAST


@pytest.mark.parametrize("prompts", [0, 1, 2])
def test_a_fixed_size_is_kept(prompts: int) -> None:
    sizer = StepSizer(TARGET_S, 4096)
    sizer.took_in(4096, 60, decoding=False)
    assert (sizer.size(prompts), sizer.most) == (4096, 4096)
