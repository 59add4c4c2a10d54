"""Which limits MLX is given, in which order; by a recording stand-in for its functions."""

from __future__ import annotations

import threading
from typing import Any

from engines import wire
from engines.text.limits import DeviceMemory

LIMITS = wire.Limits(
    charge_bytes=10_000,
    weights_bytes=5_000,
    kv_bytes=3_000,
    prompt_cache_bytes=1_000,
    mlx_cache_bytes=700,
)


class RecordingMlx:
    """Remembers every call; a generator's constructor is recorded by the test itself."""

    def __init__(self, recommended: int | None) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self._info = (
            {} if recommended is None else {"max_recommended_working_set_size": recommended}
        )

    def set_memory_limit(self, limit: int) -> int:
        self.calls.append(("memory", limit))
        return 0

    def set_cache_limit(self, limit: int) -> int:
        self.calls.append(("cache", limit))
        return 0

    def set_wired_limit(self, limit: int) -> int:
        self.calls.append(("wired", limit))
        return 0

    def get_cache_memory(self) -> int:
        return 42

    def clear_cache(self) -> None:
        self.calls.append(("clear", None))

    def synchronize(self) -> None:
        self.calls.append(("synchronize", None))

    def clear_streams(self) -> None:
        self.calls.append(("streams", None))

    def device_info(self) -> dict[str, Any]:
        return dict(self._info)


def test_limits_are_set_before_the_load_and_after_every_generator() -> None:
    mlx = RecordingMlx(recommended=100_000)
    memory = DeviceMemory(mlx, LIMITS)

    def build() -> str:
        mlx.calls.append(("generator", None))
        mlx.set_wired_limit(100_000)  # as mlx-lm's generator does
        return "generator"

    memory.before_load()
    assert memory.construct(build) == "generator"
    assert memory.construct(build) == "generator"
    constructed = [("generator", None), ("wired", 100_000), ("wired", 8_000)]
    assert mlx.calls == [("memory", 10_000), ("cache", 700), *constructed, *constructed]
    assert memory.applied == {"memory_limit": 10_000, "cache_limit": 700, "wired_limit": 8_000}


def test_the_wired_limit_stays_below_what_the_device_recommends() -> None:
    memory = DeviceMemory(RecordingMlx(recommended=6_000), LIMITS)
    memory.construct(lambda: None)
    assert memory.applied["wired_limit"] == 6_000


def test_a_device_without_a_recommendation_takes_the_share_as_it_is() -> None:
    memory = DeviceMemory(RecordingMlx(recommended=None), LIMITS)
    memory.construct(lambda: None)
    assert memory.applied["wired_limit"] == 8_000


def test_changed_limits_apply_at_once_and_give_back_what_is_freed() -> None:
    mlx = RecordingMlx(recommended=None)
    memory = DeviceMemory(mlx, LIMITS)
    memory.change(wire.Limits(9_000, 5_000, 2_000, 0, 500))
    assert mlx.calls == [
        ("memory", 9_000),
        ("cache", 500),
        ("synchronize", None),
        ("wired", 7_000),
        ("clear", None),
    ]
    assert memory.cached_bytes == 42


def test_a_thread_leaves_no_stream_behind_and_the_main_thread_keeps_its_own() -> None:
    mlx = RecordingMlx(recommended=None)
    memory = DeviceMemory(mlx, LIMITS)
    memory.leave_thread()
    assert mlx.calls == [("synchronize", None), ("clear", None)]
    thread = threading.Thread(target=memory.leave_thread)
    thread.start()
    thread.join(timeout=30)
    assert mlx.calls[2:] == [("synchronize", None), ("clear", None), ("streams", None)]
