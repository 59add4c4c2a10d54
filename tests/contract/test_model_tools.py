"""`mlx-gateway model inspect`, `acquire` and `convert`, against a hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from gateway.cli import exits
from tests.harness.fake_hub import FakeHub, fake_hub

TIMEOUT_S = 120
NANO = Path(__file__).parents[1] / "fixtures" / "models" / "random-nano"
REPO = "maker/tiny"
LARGE_BYTES = 24 * 2**20
"""The hub's library writes ten MiB at a time."""

WEIGHTS = "model.safetensors"


def safetensors(size: int) -> bytes:
    """A file with one float32 tensor of `size` bytes."""
    tensor = {"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
    header = json.dumps({"__metadata__": {"format": "mlx"}, **tensor}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(256)) * (size // 256)


@pytest.fixture(scope="module")
def large() -> bytes:
    return safetensors(LARGE_BYTES)


@pytest.fixture
def hub(large: bytes) -> Iterator[FakeHub]:
    with fake_hub() as running:
        small = {path.name: path.read_bytes() for path in NANO.iterdir() if path.name != WEIGHTS}
        extra = {
            "onnx/model.onnx": b"for others",
            "pytorch_model.bin": b"a pickle",
            "1_Pooling/config.json": b"{}",
            WEIGHTS: large,
        }
        running.repositories[REPO] = {**small, **extra}
        running.repositories["maker/evil"] = {"../../evil.json": b"{}", WEIGHTS: safetensors(1024)}
        running.repositories["maker/gated"] = {**small, WEIGHTS: safetensors(1024)}
        running.gated.add("maker/gated")
        yield running


def environment(folder: Path, hub: FakeHub | None, extra: Mapping[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MLX_GATEWAY_", "HF_"))}
    inherited |= {"HF_HOME": str(folder / "hf"), "MLX_GATEWAY_STATE_DIR": str(folder / "state")}
    return {**inherited, **({"HF_ENDPOINT": hub.url} if hub else {}), **extra}


def model(
    folder: Path, hub: FakeHub | None, *arguments: str, **extra: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "model", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment(folder, hub, extra),
    )


def acquire(
    folder: Path, hub: FakeHub, repo: str = REPO, **extra: str
) -> subprocess.CompletedProcess[str]:
    return model(folder, hub, "acquire", repo, "--target-dir", str(folder / "it"), **extra)


def test_a_model_is_looked_at_before_it_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    done = model(tmp_path, hub, "inspect", REPO, "--json")
    assert done.returncode == exits.DONE, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["kind"], seen["architecture"]) == ("text", "LlamaForCausalLM")
    assert seen["kv_bytes_per_token"] == 512
    assert seen["weights_bytes"] >= LARGE_BYTES
    assert seen["origin"]["commit"] == hub.commit(REPO)
    assert any("pytorch_model.bin" in warning for warning in seen["warnings"])
    assert not hub.fetched(WEIGHTS)
    alone = model(tmp_path, hub, "inspect", REPO, "--local-files-only")
    assert alone.returncode == exits.NOT_FOUND
    assert "local Hugging Face cache" in alone.stderr


def test_a_model_is_fetched_whole_with_what_it_is_made_of(hub: FakeHub, tmp_path: Path) -> None:
    done = acquire(tmp_path, hub)
    assert done.returncode == exits.DONE, done.stderr
    target = tmp_path / "it"
    manifest = json.loads((target / "model.manifest.json").read_text())
    assert (manifest["repo"], manifest["commit"]) == (REPO, hub.commit(REPO))
    assert manifest["endpoint"] == hub.url
    for record in manifest["files"]:
        content = (target / record["path"]).read_bytes()
        assert content == hub.repositories[REPO][record["path"]]
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            record["size"],
            record["sha256"],
        )
    names = {record["path"] for record in manifest["files"]}
    assert names == set(hub.repositories[REPO]) - {"onnx/model.onnx", "pytorch_model.bin"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "hf") == ["it"]
    again = acquire(tmp_path, hub)
    assert "was there already" in again.stdout
    assert len(hub.fetched(WEIGHTS)) == 1
    looked = model(tmp_path, hub, "inspect", str(target))
    assert f"{REPO} at {hub.commit(REPO)}" in looked.stdout
    hub.repositories[REPO]["README.md"] = b"a newer commit"
    refused = acquire(tmp_path, hub)
    assert (refused.returncode, "is there already" in refused.stderr) == (exits.USAGE, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_download_goes_on_where_it_was(
    hub: FakeHub, tmp_path: Path, number: signal.Signals
) -> None:
    hub.hold_at[WEIGHTS] = 15 * 2**20
    command = [sys.executable, "-m", "gateway", "model", "acquire", REPO]
    with subprocess.Popen(
        [*command, "--target-dir", str(tmp_path / "it")],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(tmp_path, hub, {"HF_HUB_DOWNLOAD_TIMEOUT": str(TIMEOUT_S)}),
        # Tests that run in the background of a shell inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("downloading") and "40%" in line:
                break
        tools = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, alive = psutil.wait_procs(tools, TIMEOUT_S)
        said = process.stderr.read()
        code = process.wait(TIMEOUT_S)
    assert (len(tools), alive) == (1, [])
    if number is signal.SIGINT:
        assert (code, "the same command goes on" in said) == (exits.INTERRUPTED, True), said
    assert not (tmp_path / "it").exists()
    hub.hold_at.clear()
    hub.ranges = number is signal.SIGINT
    done = acquire(tmp_path, hub)
    assert done.returncode == exits.DONE, done.stderr
    first, second = hub.fetched(WEIGHTS)
    assert first.range is None
    assert int(re.sub(r"\D", "", second.range or "0")) >= 10 * 2**20
    assert (tmp_path / "it" / WEIGHTS).read_bytes() == hub.repositories[REPO][WEIGHTS]
    assert len(hub.fetched("tokenizer.json")) == 1


@pytest.mark.parametrize("damaged", [WEIGHTS, "config.json"])
def test_damaged_bytes_are_refused(hub: FakeHub, tmp_path: Path, damaged: str) -> None:
    hub.damaged.add(damaged)
    done = acquire(tmp_path, hub)
    assert done.returncode == exits.FAILED
    assert f"{damaged} of {REPO} came damaged" in done.stderr
    assert not (tmp_path / "it").exists()
    hub.damaged.clear()
    assert acquire(tmp_path, hub).returncode == exits.DONE


def test_a_token_opens_what_is_gated_and_is_never_shown(hub: FakeHub, tmp_path: Path) -> None:
    closed = acquire(tmp_path, hub, "maker/gated")
    assert closed.returncode == exits.REFUSED
    assert "ask for access at" in closed.stderr
    assert "set HF_TOKEN" in closed.stderr
    wrong = acquire(tmp_path, hub, "maker/gated", HF_TOKEN="hf_wrongwrongwrong")
    assert wrong.returncode == exits.REFUSED
    assert "cannot see it" in wrong.stderr
    assert "hf_wrong" not in wrong.stderr + wrong.stdout
    opened = acquire(tmp_path, hub, "maker/gated", HF_TOKEN=hub.token)
    assert opened.returncode == exits.DONE, opened.stderr
    assert hub.token not in opened.stderr + opened.stdout
    assert hub.token not in (tmp_path / "it" / "model.manifest.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "extra", "code", "told"),
    [
        (("maker/nobody",), {}, exits.NOT_FOUND, "has no model maker/nobody, or it is private"),
        ((REPO, "--revision", "no"), {}, exits.NOT_FOUND, "has no revision no"),
        (("maker/evil",), {}, exits.FAILED, "unsafe name"),
        (("no-id",), {}, exits.USAGE, "which is owner/name"),
        ((REPO,), {"HF_HUB_OFFLINE": "1"}, exits.UNREACHABLE, "HF_HUB_OFFLINE is set"),
        ((REPO,), {"HF_ENDPOINT": "http://127.0.0.1:9"}, exits.UNREACHABLE, "does not answer"),
    ],
)
def test_what_cannot_be_fetched_says_why(
    hub: FakeHub,
    tmp_path: Path,
    arguments: tuple[str, ...],
    extra: dict[str, str],
    code: int,
    told: str,
) -> None:
    done = model(tmp_path, hub, "acquire", *arguments, **extra)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert not list(tmp_path.rglob("*.safetensors"))


# --- convert --------------------------------------------------------------------------------------


def test_a_model_is_quantised_and_the_recipe_kept(tmp_path: Path) -> None:
    output = tmp_path / "q8"
    recipe = ("--quantize", "--q-bits", "8", "--q-group-size", "32")
    command = ("convert", str(NANO), "--output", str(output), *recipe)
    dry = model(tmp_path, None, *command, "--dry-run")
    assert dry.stdout.startswith("python -m mlx_lm convert --hf-path ")
    assert not output.exists()
    done = model(tmp_path, None, *command)
    assert done.returncode == exits.DONE, done.stderr
    manifest = json.loads((output / "model.manifest.json").read_text())
    assert manifest["recipe"] == json.loads(dry.stdout.split("\n", 1)[1])["recipe"]
    assert manifest["command"] in dry.stdout
    assert manifest["versions"]["mlx-lm"]
    source = {file["path"]: file["sha256"] for file in manifest["source"]["files"]}
    assert source[WEIGHTS] == hashlib.sha256((NANO / WEIGHTS).read_bytes()).hexdigest()
    assert [path.name for path in tmp_path.iterdir() if path.name != "hf"] == ["q8"]
    seen = json.loads(model(tmp_path, None, "inspect", str(output), "--json").stdout)
    assert (seen["format"], seen["quantisation"]) == ("MLX", "8 bit, groups of 32, affine")
    assert seen["fits"]
    again = model(tmp_path, None, *command)
    assert (again.returncode, "is there already" in again.stderr) == (exits.USAGE, True)


@pytest.mark.parametrize(
    ("source", "flags", "code", "told"),
    [
        (str(NANO), ("--q-bits", "4"), exits.USAGE, "need --quantize"),
        ("maker/tiny", (), exits.NOT_FOUND, "model acquire maker/tiny"),
        ("/nowhere", (), exits.NOT_FOUND, "no such folder"),
        (str(NANO), ("--quantize", "--q-bits", "7"), exits.FAILED, "cannot be converted"),
    ],
)
def test_what_cannot_be_converted_says_why(
    tmp_path: Path, source: str, flags: tuple[str, ...], code: int, told: str
) -> None:
    output = tmp_path / "out"
    done = model(tmp_path, None, "convert", source, "--output", str(output), *flags)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert not output.exists()
