"""How a sentence-transformers folder makes one vector of a text: pooling, layers, prompts, length.

Read from its JSON files by hand: nothing here loads a weight. A folder without `modules.json`, such
as a converted one, says nothing about any of it; then the family of the model decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engines.base import LoadError

Mode = Literal["cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens"]

_MODES: tuple[Mode, ...] = get_args(Mode)
_SWITCHES: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The older form of a pooling's configuration, in the order in which several are joined."""

_ROLES: dict[str, tuple[str, ...]] = {
    "query": ("query", "search_query", "retrieval_query", "web_search_query"),
    "document": ("document", "passage", "search_document", "retrieval_document", "corpus"),
}
"""What models call their prompts for the two sides of a search, the usual name first."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the vectors of tokens become one; several modes give one long vector.

    Without `include_prompt` the tokens of a prompt are not pooled.
    """

    modes: tuple[Mode, ...]
    include_prompt: bool = True


@dataclass(frozen=True, slots=True)
class Dense:
    """A layer behind the pooling; `activation` is the class name of torch, such as `Tanh`."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts that go in front of an input, by name."""

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def find(self, name: str | None) -> str:
        """The text of a prompt. Raises `KeyError` for a name that the model does not have.

        `query` and `document` always exist: they stand for whatever the model calls that side, and
        a model without a prompt for it takes it without one.
        """
        if name is None:
            return self.texts.get(self.default, "") if self.default else ""
        if name in self.texts:
            return self.texts[name]
        for own in _ROLES[name]:
            if own in self.texts:
                return self.texts[own]
        return ""


@dataclass(frozen=True, slots=True)
class Sentence:
    """None where the folder does not say. `max_tokens` is the longest input."""

    pooling: Pooling | None = None
    dense: tuple[Dense, ...] = ()
    normalise: bool = True
    prompts: Prompts = field(default_factory=Prompts)
    max_tokens: int | None = None


def read_sentence(folder: Path) -> Sentence:
    """Raises `LoadError` naming what this engine cannot do."""
    prompts = _prompts(folder)
    max_tokens = _max_tokens(folder)
    listed = read_json(folder / "modules.json", list)
    if not listed:
        pooling = _pooling(folder / "1_Pooling") if (folder / "1_Pooling").is_dir() else None
        return Sentence(pooling=pooling, prompts=prompts, max_tokens=max_tokens)
    pooling, dense, normalise = None, [], False
    for module in listed:
        kind = str(module.get("type", "")).rpartition(".")[2]
        path = folder / str(module.get("path", ""))
        match kind:
            case "Transformer":
                pass
            case "Pooling":
                pooling = _pooling(path)
            case "Dense":
                dense.append(_dense(path))
            case "Normalize":
                normalise = True
            case _:
                raise LoadError(
                    f"modules.json names a module {kind!r}, which this engine does not know;"
                    " it knows Transformer, Pooling, Dense and Normalize"
                )
    return Sentence(pooling, tuple(dense), normalise, prompts, max_tokens)


def read_json(file: Path, kind: type[Any]) -> Any:
    """The file's content, or an empty `kind` where there is no file. Raises `LoadError`."""
    if not file.is_file():
        return kind()
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{file} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise LoadError(f"{file} holds no JSON {'object' if kind is dict else 'list'}")
    return value


def _pooling(folder: Path) -> Pooling:
    config = read_json(folder / "config.json", dict)
    given = config.get("pooling_mode")
    if given is None:
        names = [mode for switch, mode in _SWITCHES.items() if config.get(switch)]
    else:
        names = list(given) if isinstance(given, list) else [given]
    for name in names:
        if name not in _MODES:
            raise LoadError(
                f"{folder.name}/config.json asks for the pooling {name!r}, which this engine does"
                f" not know; it knows {', '.join(_MODES)}"
            )
    return Pooling(tuple(names) or ("mean",), bool(config.get("include_prompt", True)))


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json", dict)
    try:
        inputs, outputs = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError) as error:
        raise LoadError(f"{folder.name}/config.json does not tell its features") from error
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    return Dense(folder, inputs, outputs, bool(config.get("bias", True)), activation)


def _prompts(folder: Path) -> Prompts:
    config = read_json(folder / "config_sentence_transformers.json", dict)
    given, default = config.get("prompts"), config.get("default_prompt_name")
    texts = given if isinstance(given, dict) else {}
    return Prompts({str(name): str(text) for name, text in texts.items()}, default)


def _max_tokens(folder: Path) -> int | None:
    given = read_json(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    return given if isinstance(given, int) and given > 0 else None
