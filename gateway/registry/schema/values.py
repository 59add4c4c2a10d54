"""Kinds of values, and what is said beside them: bounds, meanings, the cost of a change.

`Meta(extra={"reload": ...})` says what a change of a key costs: `restart` needs a new engine
process (for `server` keys: a new listener), `live` counts from the next request on. Sizes are
floats in GiB however they were written; `units.gib` turns them into bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

Kind = Literal["text", "vision", "embedding", "rerank", "transcription", "speech"]
Strategy = Literal["fail", "wait", "preempt", "wait_then_fail", "wait_then_preempt"]
PriorityName = Literal["high", "normal", "low"]
LogLevel = Literal["debug", "info", "warning", "error"]
Reload = Literal["restart", "live"]
Right = Literal["infer", "manage", "admin"]

# Both lists hold the canonical names first, then the other names operators know them by. The last
# tool parsers are mlx-lm's own.
# fmt: off
ToolParser = Literal[
    "auto", "hermes", "qwen", "qwen3_coder", "mistral", "llama", "pythonic", "deepseek_v3",
    "deepseek_v31", "kimi_k2", "granite", "nemotron", "xlam", "functionary", "functionary_v3_2",
    "glm4", "minimax_m2", "gemma4", "harmony", "poolside_v1", "step3p5",
    "qwen3", "llama3", "llama4", "nous", "deepseek", "deepseek_r1", "kimi", "moonshot", "granite3",
    "granite4", "nemotron3", "meetkai", "glm47", "minimax", "gpt-oss", "llama3_json",
    "function_gemma", "kimi_k3", "longcat", "minicpm5", "muse_spark",
]
ReasoningParser = Literal[
    "auto", "qwen3", "deepseek_r1", "gemma4", "glm4", "gpt_oss", "harmony", "mistral",
    "minimax_m2", "poolside_v1", "step3p5", "think",
]
# fmt: on

SIZE = "size"
"""`Meta(extra={"unit": SIZE})`: a number of GiB, or text that `units.parse_size` reads."""

Gigabytes = Annotated[float, Meta(ge=0, le=2**20, extra={"unit": SIZE})]
PositiveGigabytes = Annotated[float, Meta(gt=0, le=2**20, extra={"unit": SIZE})]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Days = Annotated[float, Meta(gt=0, le=3650)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
PositiveFraction = Annotated[float, Meta(gt=0, le=1)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopK = Annotated[int, Meta(ge=0, le=1_000_000)]
Tokens = Annotated[int, Meta(ge=1, le=100_000_000)]
StepTokens = Annotated[int, Meta(ge=1, le=65_536)]
Spares = Annotated[int, Meta(ge=0, le=4)]
Place = Annotated[str, Meta(min_length=1, max_length=4096)]
Root = Annotated[str, Meta(pattern=r"^/[^\x00]*$", max_length=4096, description="beginning with /")]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[^\s\x00-\x1f\x7f](?:[^\t\r\n\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$",
        max_length=256,
        description="without control characters and without blanks at either end",
    ),
]
PerMinute = Annotated[int, Meta(ge=1, le=1_000_000)]
Secret = Annotated[
    str,
    Meta(pattern=r"^[\x21-\x7e]+$", max_length=512, description="in ASCII and without blanks"),
]


def live(description: str, **rest: Any) -> Meta:
    return Meta(description=description, extra={"reload": "live"}, **rest)


def restart(description: str, **rest: Any) -> Meta:
    return Meta(description=description, extra={"reload": "restart"}, **rest)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the registry."""


@cache
def fields_of(part: type[msgspec.Struct]) -> Mapping[str, FieldInfo]:
    """The keys of a part in order. Kept, because msgspec evaluates every annotation anew."""
    return MappingProxyType({info.name: info for info in msgspec.structs.fields(part)})


def is_size(kind: Any) -> bool:
    """Whether values of this annotated type are sizes."""
    metas = getattr(kind, "__metadata__", ())
    own = any(isinstance(meta, Meta) and (meta.extra or {}).get("unit") == SIZE for meta in metas)
    inner = kind.__origin__ if metas else None
    return own or any(map(is_size, (inner,) if inner is not None else get_args(kind)))


def reload_of(part: type[msgspec.Struct], key: str) -> Reload:
    """What a change of `key` in `part` costs. Raises `KeyError` for a key that does not exist."""
    for meta in getattr(fields_of(part)[key].type, "__metadata__", ()):
        if isinstance(meta, Meta) and meta.extra and "reload" in meta.extra:
            return "restart" if meta.extra["reload"] == "restart" else "live"
    raise KeyError(key)
