"""The gateway's own process under the standard names, and its helpers, on Linux and macOS.

The collector that comes with prometheus_client reads /proc and has nothing to say on a Mac.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.metrics.gauges import PREFIX


def own_families() -> Iterable[Metric]:
    """To be read in a thread: the system is asked for each of them."""
    import psutil

    process = psutil.Process()
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
        began, files = process.create_time(), process.num_fds()
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the gateway", times.user + times.system
    )
    for name, text, value in (
        ("resident_memory_bytes", "memory of the gateway itself", memory.rss),
        ("virtual_memory_bytes", "address space of the gateway itself", memory.vms),
        ("open_fds", "open file descriptors", files),
        ("max_fds", "as many may be open", most_files),
        ("start_time_seconds", "when it started, as a Unix time", began),
    ):
        yield GaugeMetricFamily(f"process_{name}", text, float(value))


def helper_families(helpers: Mapping[str, tuple[int, ...]]) -> Iterable[Metric]:
    """Processes without a model; as `own_families`."""
    count = GaugeMetricFamily(
        PREFIX + "helper_processes", "processes without a model", labels=("role",)
    )
    memory = GaugeMetricFamily(
        PREFIX + "helper_memory_bytes", "their resident memory", labels=("role",)
    )
    for role, pids in helpers.items():
        count.add_metric([role], len(pids))
        memory.add_metric([role], sum(map(_resident_bytes, pids)))
    return (count, memory)


def _resident_bytes(pid: int) -> int:
    import psutil

    with contextlib.suppress(psutil.Error):  # it has ended meanwhile
        return int(psutil.Process(pid).memory_info().rss)
    return 0
