"""Which files of a repository are fetched."""

from __future__ import annotations

import pytest

from engines import wire
from engines.tools.choice import HubFile, chosen
from engines.tools.errors import ToolError

TEXT = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")
SENTENCE = ("config.json", "model.safetensors", "modules.json", "1_Pooling/config.json")
SPEECH = ("config.json", "kokoro.safetensors", "voices/af.pt", "voices/bf.safetensors")


def names(paths: tuple[str, ...], kind: wire.ToolKind = "text") -> tuple[str, ...]:
    files = [HubFile(path, 1, git_id="a") for path in paths]
    return tuple(file.path for file in chosen(files, kind, "maker/it"))


@pytest.mark.parametrize(
    ("kind", "needed", "others"),
    [
        ("text", TEXT, ("pytorch_model.bin", "model.gguf", ".gitattributes", "picture.png")),
        ("text", TEXT, ("original/params.json", "onnx/model.onnx", "onnx/config.json")),
        ("embedding", SENTENCE, ("openvino/openvino_model.xml", "tf_model.h5")),
        ("speech", SPEECH, ("samples.mp3",)),
        ("text", TEXT, ("voices/af.pt", "weights.npz")),
        ("transcription", ("config.json", "weights.npz"), ()),
    ],
)
def test_what_an_engine_needs(
    kind: wire.ToolKind, needed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert names(needed + others, kind) == needed


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (("config.json", "pytorch_model.bin"), "PyTorch pickles only"),
        (("model-Q4.gguf", "README.md"), "GGUF files only"),
        (("config.json",), "no weights"),
        (("onnx/model.safetensors",), "no weights"),
        ((*TEXT, "../../.bashrc.json"), "unsafe name"),
        ((*TEXT, "/etc/x.json"), "unsafe name"),
        ((*TEXT, "a\\..\\b.json"), "unsafe name"),
        ((*TEXT, "a\0.json"), "unsafe name"),
    ],
)
def test_what_is_refused(paths: tuple[str, ...], told: str) -> None:
    with pytest.raises(ToolError, match=told):
        names(paths)


def test_a_file_without_checksum_is_refused() -> None:
    assert HubFile("a", 1, sha256="s", git_id="g").digest == "s"
    assert HubFile("a", 1, git_id="g").digest == "g"
    with pytest.raises(ToolError, match="no checksum of a"):
        _ = HubFile("a", 1).digest
