"""Loading and unloading costs nothing that stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cycles import compared

pytestmark = pytest.mark.anyio


async def test_load_and_unload_leave_nothing_behind(tmp_path: Path) -> None:
    print(f"\n{await compared(warm=10, total=30, folder=tmp_path)}")  # noqa: T201
