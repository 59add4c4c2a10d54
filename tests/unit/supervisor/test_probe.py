"""Figures about memory when the system does not tell."""

from __future__ import annotations

import psutil
import pytest

from gateway.supervisor import probe
from gateway.supervisor.probe import SystemProbe


def test_without_a_descriptor_left_the_last_figures_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = SystemProbe()
    monkeypatch.setattr(probe, "PLATFORM", "linux")
    known = asked.available_bytes()
    assert known > 0
    pressure = asked.pressure()

    def fails() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "virtual_memory", fails)
    assert asked.available_bytes() == asked._available
    assert asked.pressure() == pressure
    assert SystemProbe().pressure() == "normal"  # it was never told anything
