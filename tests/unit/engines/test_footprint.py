"""Reading the process's own footprint."""

from __future__ import annotations

import pytest

from engines.footprint import process_bytes, unique_bytes

ROLLUP = """\
00400000-7ffd000 ---p 00000000 00:00 0                    [rollup]
Rss:               20480 kB
Pss:               15000 kB
Shared_Clean:       9000 kB
Private_Clean:       100 kB
Private_Dirty:      2000 kB
Private_Hugetlb:    4096 kB
Swap:                 10 kB
"""


def test_the_private_lines_add_up() -> None:
    assert unique_bytes(ROLLUP) == (100 + 2000 + 4096) * 1024


def test_a_roll_up_without_private_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="no private lines"):
        unique_bytes("Rss: 1 kB\n")


def test_this_process_has_a_plausible_size() -> None:
    before = process_bytes()
    held = bytearray(b"x") * (64 * 2**20)
    assert process_bytes() - before > len(held) / 2
