"""A gateway as the demo sees one, without any model: for the demo's own tests.

Its engines are sleeping processes, one at a time. `answer` in the environment variable STAND_IN is
what each model says; `keep_engines` makes it break its promise and leave evicted engines running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

FAULTS: dict[str, Any] = json.loads(os.environ["STAND_IN"])
ANSWER: str = FAULTS.get("answer", "The capital of France is Paris.")
NAMES = [
    model["name"]
    for model in yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())[
        "models"
    ]
]
engines: dict[str, subprocess.Popen[bytes]] = {}


def end_engines() -> None:
    for name in list(engines):
        engine = engines.pop(name)
        if not FAULTS.get("keep_engines"):
            engine.terminate()
            engine.wait()


def load(name: str) -> None:
    if name not in engines:
        end_engines()
        engines[name] = subprocess.Popen(["sleep", "600"])


def status() -> dict[str, Any]:
    models = [
        {
            "name": name,
            "state": "ready" if name in engines else "unloaded",
            "pid": engines[name].pid if name in engines else None,
            "charge_bytes": 2**30,
        }
        for name in NAMES
    ]
    memory = {"committed_bytes": 2**30 * len(engines), "budget_bytes": 2**30}
    return {"memory": memory, "models": models}


def completion(content: str, *, chunk: bool) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "finish_reason": "stop", "delta" if chunk else "message": message}
    kind = "chat.completion.chunk" if chunk else "chat.completion"
    answer = {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(answer).encode()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send("application/json", json.dumps(status()).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        load(request["model"])
        if request.get("stream"):
            words = [completion(f"{word} ", chunk=True) for word in ANSWER.split()]
            frames = [b"data: " + part + b"\n\n" for part in [*words, b"[DONE]"]]
            self._send("text/event-stream", b"".join(frames))
        else:
            self._send("application/json", completion(ANSWER, chunk=False))

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing: the requests are the demo's."""


def stop(*_: object) -> None:
    end_engines()
    sys.exit(0)


def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    signal.signal(signal.SIGTERM, stop)
    run = Path(os.environ["MLX_GATEWAY_STATE_DIR"], "run")
    run.mkdir(parents=True)
    (run / "address").write_text(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()


if __name__ == "__main__":
    main()
