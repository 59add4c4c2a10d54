"""What a sentence-transformers folder says, read from its JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.base import LoadError
from engines.vectors.config import cost_of, patched, positions_of
from engines.vectors.sentence import Pooling, Prompts, Sentence, read_sentence

LIBRARY = "sentence_transformers.models"
MODULES = [
    {"type": f"{LIBRARY}.Transformer", "path": ""},
    {"type": f"{LIBRARY}.Pooling", "path": "1_Pooling"},
    {"type": f"{LIBRARY}.Normalize", "path": "2_Normalize"},
]


def write(folder: Path, **files: Any) -> Path:
    """JSON files; in their names `__` is a slash."""
    for name, value in files.items():
        file = folder / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def pooled(folder: Path, config: dict[str, Any]) -> Pooling | None:
    write(folder, modules=MODULES, **{"1_Pooling__config": config})
    return read_sentence(folder).pooling


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert read_sentence(tmp_path) == Sentence()


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling(("cls",))),
        ({"pooling_mode_mean_tokens": True}, Pooling(("mean",))),
        ({"pooling_mode_lasttoken": True}, Pooling(("lasttoken",))),
        ({"pooling_mode": "max"}, Pooling(("max",))),
        ({"pooling_mode": ["mean", "max"]}, Pooling(("mean", "max"))),
        (
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            Pooling(("cls", "mean")),
        ),
        ({"pooling_mode": "mean", "include_prompt": False}, Pooling(("mean",), False)),
        ({}, Pooling(("mean",))),
    ],
)
def test_pooling(tmp_path: Path, config: dict[str, Any], pooling: Pooling) -> None:
    assert pooled(tmp_path, config) == pooling


def test_an_unknown_pooling_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"1_Pooling/config\.json asks for the pooling 'median'"):
        pooled(tmp_path, {"pooling_mode": "median"})


def test_an_unknown_module_is_named(tmp_path: Path) -> None:
    write(tmp_path, modules=[*MODULES, {"type": f"{LIBRARY}.WordWeights", "path": "3"}])
    with pytest.raises(LoadError, match="names a module 'WordWeights'"):
        read_sentence(tmp_path)


@pytest.mark.parametrize(("count", "normalise"), [(3, True), (2, False)])
def test_normalised_only_if_it_says_so(tmp_path: Path, count: int, normalise: bool) -> None:
    write(tmp_path, modules=MODULES[:count])
    assert read_sentence(tmp_path).normalise is normalise


def test_a_dense_layer(tmp_path: Path) -> None:
    module = {"type": f"{LIBRARY}.Dense", "path": "2_Dense"}
    layer = {"in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.x.Tanh"}
    write(tmp_path, modules=[*MODULES[:2], module], **{"2_Dense__config": layer})
    (dense,) = read_sentence(tmp_path).dense
    assert (dense.inputs, dense.outputs, dense.bias, dense.activation) == (8, 4, True, "Tanh")
    write(tmp_path, **{"2_Dense__config": {"in_features": 8}})
    with pytest.raises(LoadError, match=r"2_Dense/config\.json does not tell its features"):
        read_sentence(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '"a"'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path, sentence_bert_config=text)
    with pytest.raises(LoadError, match=r"sentence_bert_config\.json"):
        read_sentence(tmp_path)


def test_lengths_and_prompts(tmp_path: Path) -> None:
    prompts = {"query": "Q: ", "passage": "P: ", "sts": "S: "}
    write(
        tmp_path,
        sentence_bert_config={"max_seq_length": 128},
        config_sentence_transformers={"prompts": prompts, "default_prompt_name": "sts"},
    )
    read = read_sentence(tmp_path)
    assert read.max_tokens == 128
    assert read.prompts.find(None) == "S: "
    assert read.prompts.find("query") == "Q: "
    assert read.prompts.find("document") == "P: "
    with pytest.raises(KeyError):
        read.prompts.find("classification")


def test_a_model_without_prompts_takes_both_sides() -> None:
    assert [Prompts().find(name) for name in (None, "query", "document")] == ["", "", ""]


# --- config.json ----------------------------------------------------------------------------------


def test_the_rope_of_newer_checkpoints_is_found() -> None:
    rope = {"rope_theta": 5000.0, "rope_type": "default"}
    assert patched({"rope_parameters": rope}, "qwen3_embedding")["rope_theta"] == 5000.0
    scaled = patched(
        {"rope_parameters": {"rope_theta": 1.0, "rope_type": "yarn", "factor": 4.0}}, "qwen3"
    )
    assert scaled["rope_scaling"]["factor"] == 4.0
    by_layer = {"full_attention": {"rope_theta": 2.0}, "sliding_attention": {"rope_theta": 3.0}}
    modern = patched({"rope_parameters": by_layer}, "modernbert")
    assert (modern["global_rope_theta"], modern["local_rope_theta"]) == (2.0, 3.0)
    older = patched({"rope_theta": 7.0, "rope_parameters": rope}, "qwen3_embedding")
    assert older["rope_theta"] == 7.0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ],
)
def test_what_would_give_other_numbers_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        patched(config, "bert")


def test_positions() -> None:
    config = {"max_position_embeddings": 514, "pad_token_id": 1}
    assert positions_of(config, "bert") == 514
    assert positions_of(config, "xlm_roberta") == 512
    with pytest.raises(LoadError, match="max_position_embeddings"):
        positions_of({}, "bert")


def test_what_a_batch_costs() -> None:
    config = {"hidden_size": 10, "num_attention_heads": 3, "intermediate_size": 20}
    assert cost_of(config, fused=False).per_token == 4 * (100 + 40)
    assert cost_of(config, fused=False).per_pair == 2 * 4 * 3
    assert cost_of(config, fused=True).per_pair == 2 * 4
    with pytest.raises(LoadError, match="intermediate_size"):
        cost_of({"hidden_size": 10, "num_attention_heads": 3}, fused=True)
