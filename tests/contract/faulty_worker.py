"""A worker whose engine breaks the contract on demand: what a real model library might do.

`python -m tests.contract.faulty_worker` is started like any worker. The engine is the scripted
one, which does what the last message's content (or, at load, the model's name) says.
"""

from __future__ import annotations

import subprocess
import sys

from engines import wire, worker
from engines.base import Emit, Report
from engines.scripted import ScriptedEngine

GRANDCHILD_LIFE_S = 60
TERMINATE_GRACE_S = 0.2


class FaultyEngine(ScriptedEngine):
    """Raises what no engine should raise; starts a grandchild that outlives the worker."""

    def __init__(self, spec: wire.EngineSpec, limits: wire.Limits, emit: Emit) -> None:
        super().__init__(spec, limits, emit)
        self._name = spec.name
        self._raise_in_step = False

    def load(self, report: Report) -> wire.Ready:
        if self._name == "raise in load":
            raise RuntimeError("no such tensor")
        if self._name == "grandchild":
            command = [sys.executable, "-c", f"import time; time.sleep({GRANDCHILD_LIFE_S})"]
            grandchild = subprocess.Popen(command, close_fds=False)
            report(wire.Loading(str(grandchild.pid)))
        return super().load(report)

    def submit(self, request: wire.Request) -> None:
        assert isinstance(request, wire.Generate)
        content = request.messages[-1]["content"]
        if content == "raise in submit":
            raise KeyError("no such template")
        self._raise_in_step = content == "raise in step"
        super().submit(request)

    def step(self) -> None:
        if self._raise_in_step:
            raise RuntimeError("shapes do not match")
        super().step()


if __name__ == "__main__":
    worker.TERMINATE_GRACE_S = TERMINATE_GRACE_S  # so that a test need not take ten seconds
    worker.main(FaultyEngine)
