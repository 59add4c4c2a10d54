"""No request ever pays for an import, and a gateway never holds a model library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx

from tests.harness.daemon import CHAT, chat_body, command, environ, registry, scripted, write

FORBIDDEN = {
    *("mlx", "mlx_lm", "transformers", "tokenizers", "safetensors", "numpy", "torch"),
    *("mcp", "huggingface_hub", "rich", "pydantic", "jinja2"),
}
TIMEOUT_S = 30


def test_what_a_gateway_imports_in_its_whole_life(tmp_path: Path) -> None:
    write(registry(scripted("model")), tmp_path)
    with (
        (tmp_path / "imports").open("w") as imports,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", *command(tmp_path)],
            env=environ(tmp_path, {}),
            stdout=subprocess.PIPE,
            stderr=imports,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=url, trust_env=False) as client:
            # What the first request, the first load and the first look at a page still import.
            for path in ("/v1/models", "/health", "/metrics", "/v1/status"):
                assert client.get(path).status_code == 200
            assert client.post(CHAT, json=chat_body("model")).status_code == 200
            streamed = client.post(CHAT, json=chat_body("model", stream=True))
            assert streamed.text.endswith("data: [DONE]\n\n")
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    imported = {
        line.rpartition("|")[2].strip()
        for line in (tmp_path / "imports").read_text().splitlines()
        if line.startswith("import time:")
    }
    assert {"gateway.app", "gateway.supervisor.engine", "engines.wire"} <= imported
    assert not {name for name in imported if name.partition(".")[0] in FORBIDDEN}
    of_engines = {name for name in imported if name.startswith("engines.")}
    assert {name for name in of_engines if not name.startswith("engines.wire")} == set()
