from __future__ import annotations

import re
from pathlib import Path

from gateway.registry.load import load

ROOT = Path(__file__).parents[3]


def test_the_registry_of_the_readme_is_accepted(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml registry\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    file = tmp_path / "registry.yaml"
    file.write_text(block, encoding="utf-8")
    loaded = load(file, environ={"HOME": str(tmp_path)})
    assert [problem for problem in loaded.problems if problem.level == "error"] == []
    assert [model.entry.name for model in loaded.models] == ["small", "large"]
