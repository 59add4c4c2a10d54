"""What is told of a tool process that does not do its task."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from engines import wire
from gateway.modeltools import child
from gateway.modeltools.child import TaskFailed, run_task, tool_environment

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "HF_HUB_OFFLINE": "1"}


def test_a_task_that_fails() -> None:
    told: list[wire.Loading] = []
    with pytest.raises(TaskFailed, match="HF_HUB_OFFLINE is set") as failed:
        run_task(wire.LookUp("maker/it"), told.append, ENVIRON)
    assert failed.value.code == "unreachable"
    assert told == [wire.Loading("asking the hub")]


def test_a_process_that_dies(tmp_path: Path) -> None:
    (tmp_path / "huggingface_hub.py").write_text(
        "import os, sys\nsys.stderr.write('the last word\\n')\nos.kill(os.getpid(), 9)\n"
    )
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(TaskFailed, match=f"killed by signal {int(signal.SIGKILL)}: the last word"):
        run_task(wire.LookUp("maker/it"), lambda progress: None, environ)


def test_a_process_that_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "SILENCE_S", 3.0)
    (tmp_path / "huggingface_hub.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    )
    monkeypatch.setattr(child, "END_S", 0.2)
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(TaskFailed, match="has said nothing for 3 s"):
        run_task(wire.LookUp("maker/it"), lambda progress: None, environ)


@pytest.mark.parametrize(
    ("online", "asked", "offline"),
    [(True, {}, None), (True, {"HF_HUB_OFFLINE": "1"}, "1"), (False, {}, "1")],
)
def test_the_hub_is_asked_only_where_it_may_be(
    online: bool, asked: dict[str, str], offline: str | None
) -> None:
    environ = {"MLX_GATEWAY_KEY": "secret", "HF_TOKEN": "t", **asked}
    made = tool_environment(environ, online=online)
    assert made.get("HF_HUB_OFFLINE") == offline
    assert (made["HF_TOKEN"], "MLX_GATEWAY_KEY" in made) == ("t", False)
