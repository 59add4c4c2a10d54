"""Files of evidence: what they are called and who can read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.modeltools.evidence import file_name, write

AT = "2026-01-02T03:04:05+00:00"


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        ("m", "m"),
        ("org/m-4bit", "org_m-4bit"),
        ("../../etc", "etc"),
        ("ü", "model"),
        ("..", "model"),
    ],
)
def test_a_name_for_a_model_of_any_name(model: str, stem: str) -> None:
    assert file_name(model, AT) == f"{stem}-2026-01-02T0304050000.json"


def test_a_file_is_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "m.json"
    write(path, {"passed": False})
    write(path, {"passed": True})
    assert json.loads(path.read_text()) == {"passed": True}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["m.json"]
