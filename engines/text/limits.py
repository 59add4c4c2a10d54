"""Byte limits on the MLX runtime of this process: which, in which order, and what was set.

`DeviceMemory` is the only caller of MLX's limit functions. Invariant: after every construction of
a generator the wired limit is the model's own share, because mlx-lm's generator wires the whole
recommended working set of the machine, which is wrong as soon as two models run beside each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from engines import wire


class Mlx(Protocol):
    """The functions of `mlx.core` that see to memory; the module itself is one."""

    def set_memory_limit(self, limit: int) -> int: ...
    def set_cache_limit(self, limit: int) -> int: ...
    def set_wired_limit(self, limit: int) -> int: ...
    def get_cache_memory(self) -> int: ...
    def clear_cache(self) -> None: ...
    def synchronize(self) -> None: ...
    def clear_streams(self) -> None: ...
    def device_info(self) -> dict[str, Any]: ...


_Built = TypeVar("_Built")


class DeviceMemory:
    """Applies one model's `wire.Limits` to MLX. Lives in the work thread."""

    def __init__(self, mlx: Mlx, limits: wire.Limits) -> None:
        self._mlx = mlx
        self.limits = limits
        self.applied: dict[str, int] = {}
        """Limits in force by name, in bytes."""

    def before_load(self) -> None:
        """Bounds allocations and the reuse cache; call before the first weight is read."""
        self._mlx.set_memory_limit(self.limits.charge_bytes)
        self._mlx.set_cache_limit(self.limits.mlx_cache_bytes)
        self.applied["memory_limit"] = self.limits.charge_bytes
        self.applied["cache_limit"] = self.limits.mlx_cache_bytes

    def construct(self, build: Callable[[], _Built]) -> _Built:
        """Builds a generator, then takes back the wired limit that its constructor set."""
        built = build()
        self._wire()
        return built

    def change(self, limits: wire.Limits) -> None:
        """Applies new limits to a loaded model at once."""
        self.limits = limits
        self.before_load()
        # MLX asks that the wired limit does not change under a running evaluation.
        self._mlx.synchronize()
        self._wire()
        self._mlx.clear_cache()

    def give_back(self) -> None:
        """Returns freed buffers to the system."""
        self._mlx.clear_cache()

    def leave_thread(self) -> None:
        """Ends this thread's use of MLX, after everything it made was dropped.

        A thread that ends with streams of its own makes MLX abort the process at exit; one that
        gave them up cannot use MLX again. The main thread ends with the process, so it keeps them.
        """
        self._mlx.synchronize()
        self._mlx.clear_cache()
        if threading.current_thread() is not threading.main_thread():
            self._mlx.clear_streams()

    @property
    def cached_bytes(self) -> int:
        """Freed buffers that MLX keeps for reuse."""
        return int(self._mlx.get_cache_memory())

    def _wire(self) -> None:
        wanted = self.limits.weights_bytes + self.limits.kv_bytes
        # Absent on CPU. MLX raises on Metal when asked for more. (not run on macOS)
        largest = self._mlx.device_info().get("max_recommended_working_set_size", wanted)
        wired = min(wanted, int(largest))
        self._mlx.set_wired_limit(wired)
        self.applied["wired_limit"] = wired
