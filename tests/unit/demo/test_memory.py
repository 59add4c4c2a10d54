from __future__ import annotations

import os
from typing import Any

import psutil

from demo import memory
from demo.memory import MIB, Moment


def test_the_table_is_aligned() -> None:
    moments = [
        Moment("nothing loaded", 0, 0, 50 * MIB, 20_000 * MIB, ()),
        Moment("a answered", 1057 * MIB, 800 * MIB, 51 * MIB, 19_000 * MIB, ("a",)),
    ]
    assert memory.table(moments).splitlines() == [
        "MiB             ledger  engines  gateway  available  resident",
        "nothing loaded       0        0       50     20,000  -",
        "a answered       1,057      800       51     19,000  a",
    ]


def test_a_moment_counts_the_models_with_a_process() -> None:
    status: dict[str, Any] = {
        "memory": {"committed_bytes": 7 * MIB},
        "models": [{"name": "a", "pid": os.getpid()}, {"name": "b", "pid": None}],
    }
    moment = memory.take("now", status, os.getpid())
    assert (moment.committed, moment.resident) == (7 * MIB, ("a",))
    assert MIB < moment.engines < psutil.virtual_memory().total


def test_a_process_that_is_gone_holds_nothing() -> None:
    unused = next(pid for pid in range(2, 2**22) if not psutil.pid_exists(pid))
    assert memory.process_bytes(unused) == 0
