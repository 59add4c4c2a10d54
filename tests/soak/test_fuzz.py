"""As `tests/contract/test_fuzz.py`, for much longer."""

from __future__ import annotations

import os

import pytest

from tests.harness.fuzz import withstand

BODIES = int(os.environ.get("FUZZ_BODIES", "100000"))


@pytest.mark.timeout(120 + BODIES)
def test_any_body_to_any_route() -> None:
    print(f"\n{dict(sorted(withstand(BODIES).items()))}")  # noqa: T201
