"""What is told of a model, from a folder and from what the hub says."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from gateway.modeltools.findings import Machine, format_of, quantisation_of, report
from gateway.modeltools.listing import Listing, of_folder, of_hub
from gateway.registry.units import GIB

NANO = Path(__file__).parents[2] / "fixtures" / "models" / "random-nano"
CPU = Machine(10 * GIB, gpu=False)
GPU = Machine(10 * GIB, gpu=True)


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    return shutil.copytree(NANO, tmp_path / "nano")


def test_a_good_model(nano: Path) -> None:
    found = report(of_folder(nano), CPU)
    assert (found.format, found.kind, found.architecture) == ("MLX", "text", "LlamaForCausalLM")
    assert (found.kv_bytes_per_token, found.context_length) == (512, 32768)
    assert (found.fits, found.warnings, found.quantisation) == (True, (), None)
    assert set(found.types) == {"F32"}


def weights(folder: Path, dtype: str, **metadata: str) -> None:
    width = {"F16": 2, "F32": 4}[dtype]
    header = json.dumps(
        {
            "__metadata__": metadata,
            "w": {"dtype": dtype, "shape": [8], "data_offsets": [0, 8 * width]},
        }
    ).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8 * width)
    (folder / "model.safetensors").write_bytes(content)


def config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _missing_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _only_pickles(folder: Path) -> None:
    _no_weights(folder)
    (folder / "pytorch_model.bin").touch()


def _only_gguf(folder: Path) -> None:
    _no_weights(folder)
    (folder / "model-Q4_K_M.gguf").touch()


def _no_template(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_no_weights, "it cannot be loaded: no weights"),
        (_missing_shard, "it cannot be loaded: model-2.safetensors of 2 weight files missing"),
        (_only_pickles, "no safetensors"),
        (_only_pickles, "pickles run code"),
        (_only_gguf, "GGUF is not served"),
        (_no_template, "no chat template"),
        (_no_tokenizer, "no tokenizer"),
        (lambda folder: config(folder, auto_map={"AutoModel": "x.Y"}), "trust_remote_code"),
        (lambda folder: weights(folder, "F16"), "float16 becomes float32"),
        (
            lambda folder: config(folder, quantization_config={"quant_method": "gptq"}),
            "quantised by gptq",
        ),
        (lambda folder: (folder / "adapter_config.json").touch(), "an adapter"),
    ],
)
def test_what_stands_in_the_way(nano: Path, spoil: Any, told: str) -> None:
    spoil(nano)
    assert any(told in warning for warning in report(of_folder(nano), CPU).warnings)


def test_float16_is_fine_on_a_gpu_and_takes_twice_the_room_elsewhere(nano: Path) -> None:
    weights(nano, "F16")
    on_gpu, on_cpu = report(of_folder(nano), GPU), report(of_folder(nano), CPU)
    assert on_gpu.warnings == ()
    assert (on_cpu.needs_bytes or 0) - (on_gpu.needs_bytes or 0) >= 16


def test_a_model_larger_than_the_budget(nano: Path) -> None:
    found = report(of_folder(nano), Machine(2**20, gpu=True))
    assert found.fits is False
    assert "the budget is 1.0 MiB" in found.warnings[0]


def test_a_model_that_cannot_be_loaded_fits_nowhere(nano: Path) -> None:
    _no_weights(nano)
    found = report(of_folder(nano), CPU)
    assert (found.fits, found.kind, found.needs_bytes) == (None, None, None)


@pytest.mark.parametrize(
    ("files", "library", "form"),
    [
        (["model.safetensors"], "mlx", "MLX"),
        (["model.safetensors"], "pt", "safetensors"),
        (["model.safetensors", "pytorch_model.bin"], None, "safetensors"),
        (["weights.npz"], None, "npz"),
        (["a.gguf"], None, "GGUF"),
        (["a.pth"], None, "PyTorch"),
        (["README.md"], None, "none"),
    ],
)
def test_formats(files: list[str], library: str | None, form: str) -> None:
    listing = Listing(place="x", files=tuple((name, 1) for name in files), library=library)
    assert format_of(listing) == form


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, None),
        ({"quantization": {"bits": 4, "group_size": 64}}, "4 bit, groups of 64"),
        (
            {"quantization": {"bits": 4, "group_size": 32, "mode": "affine", "lm_head": {}}},
            "4 bit, groups of 32, affine, mixed",
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization": "odd"}, None),
    ],
)
def test_quantisation(config: dict[str, Any], told: str | None) -> None:
    assert quantisation_of(config) == told


def hub_says(**changes: Any) -> dict[str, Any]:
    said = {
        "repo": "maker/nano",
        "commit": "c0ffee",
        "files": [["config.json", 1], ["model.safetensors", 4000], ["tokenizer.json", 5]],
        "config": json.loads((NANO / "config.json").read_text()),
        "chat_template": True,
        "tags": ["mlx"],
        "gated": False,
        "types": {"BF16": 10},
    }
    return {**said, **changes}


def test_the_hub_says_the_same_as_a_folder() -> None:
    found = report(of_hub(hub_says()), CPU)
    local = report(of_folder(NANO), CPU)
    assert (found.kind, found.context_length) == (local.kind, local.context_length)
    assert found.kv_bytes_per_token == 256  # bfloat16 takes half
    assert (found.format, found.weights_bytes, found.warnings) == ("MLX", 4000, ())
    assert found.origin == {"repo": "maker/nano", "commit": "c0ffee"}
    assert found.types == {"BF16": 20}  # bytes, of as many parameters as the hub counts


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gated": True}, "gated"),
        ({"files": [["a.gguf", 1]]}, "GGUF"),
        ({"config": {}}, "no config.json"),
        ({"chat_template": False}, "no chat template"),
    ],
)
def test_what_the_hub_warns_of(changes: dict[str, Any], told: str) -> None:
    assert any(told in warning for warning in report(of_hub(hub_says(**changes)), CPU).warnings)


def test_a_broken_header_is_no_trouble(nano: Path) -> None:
    (nano / "model.safetensors").write_bytes(b"\xff" * 100)
    found = report(of_folder(nano), CPU)
    assert any("cannot be loaded" in warning for warning in found.warnings)
    assert found.types == {}


def test_there_has_to_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        of_folder(tmp_path / "none")
