"""The registry file as frozen structs: every key, its meaning, its bounds, its default.

This is the one place where a key exists; loading, `check`, the example and the documentation
follow from it. `Meta(extra={"reload": ...})` says what a change of the key costs: `restart` needs
a new engine process (for `server` keys: a new listener), `live` counts from the next request on.
Sizes are floats in GiB however they were written; `units.gib` turns them into bytes.
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


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the registry."""


# --- manager ----------------------------------------------------------------------------------


class ContentionPolicy(_Struct, frozen=True, kw_only=True):
    """What happens when a model is asked for and what would have to leave is in use."""

    strategy: Annotated[
        Strategy,
        live(
            "fail refuses at once; wait and wait_then_fail refuse at wait_timeout_s; preempt ends "
            "running calls at once, wait_then_preempt after preempt_after_s"
        ),
    ] = "wait_then_fail"
    wait_timeout_s: Annotated[
        PositiveSeconds, live("how long a request waits for room before it is refused")
    ] = 120
    preempt_after_s: Annotated[
        Seconds, live("with wait_then_preempt: how long to wait before running calls are ended")
    ] = 15


class Manager(_Struct, frozen=True, kw_only=True):
    """The memory budget and how models share it."""

    memory_budget_gb: Annotated[
        PositiveGigabytes | Literal["auto"],
        live(
            "memory for all models together, with their KV and caches; auto is what models can "
            "be given, less max(4 GiB, 15 %) of the machine",
            examples=["auto", 80, "80GB", "512MiB"],
        ),
    ] = "auto"
    contention_policy: Annotated[
        ContentionPolicy, live("what happens when there is no room and nothing idle to evict")
    ] = ContentionPolicy()
    min_resident_s: Annotated[
        Seconds | None,
        live("how long a loaded model is kept at least; absent: min(10, max_wait_s)"),
    ] = None
    max_wait_s: Annotated[
        Seconds | None,
        live(
            "a request that has waited longer goes before every priority; "
            "absent: min(60, wait_timeout_s / 2)"
        ),
    ] = None
    drain_max_s: Annotated[
        Seconds, live("how long running calls of a changed or removed model may take at a reload")
    ] = 30
    load_concurrency: Annotated[int, live("models that load at the same time", ge=1, le=16)] = 1
    max_engines: Annotated[int, live("engine processes at the same time", ge=1, le=64)] = 8
    standby: Annotated[
        Spares | None,
        live(
            "spare processes with their imports done, so that a load is the weights alone; "
            "absent: 1, and 0 on Linux without CUDA"
        ),
    ] = None
    load_timeout_s: Annotated[
        PositiveSeconds, live("a load that makes no progress for so long has failed")
    ] = 120
    hang_timeout_s: Annotated[
        PositiveSeconds, live("a model with work that makes no progress for so long is ended")
    ] = 120
    first_step_timeout_s: Annotated[
        PositiveSeconds, live("hang_timeout_s of the first step after a load, when kernels compile")
    ] = 600
    prefill_slots: Annotated[
        int,
        live(
            "models that take in a long prompt (512 tokens or more that are not cached) at the "
            "same time, so that running calls of the others go on; 0: any number",
            ge=0,
            le=64,
        ),
    ] = 1
    preempt_grace_s: Annotated[
        Seconds, live("how long calls that will be preempted may still take to end by themselves")
    ] = 2


# --- server -----------------------------------------------------------------------------------


class ApiKey(_Struct, frozen=True, kw_only=True):
    """One key and what whoever shows it may do."""

    name: Annotated[Name, live("what logs and messages call it")]
    key: Annotated[Secret | None, live("the key itself, best as ${env:NAME}")] = None
    key_file: Annotated[
        Place | None, live("a file that holds it and that its owner alone can read")
    ] = None
    rights: Annotated[
        tuple[Right, ...],
        live(
            "infer: use models; manage: load, unload, pin, cancel the requests of others; "
            "admin: reload, explain, events"
        ),
    ] = ("infer",)
    models: Annotated[
        tuple[Name, ...], live("patterns of names; it sees no others", examples=[["chat-*"]])
    ] = ("*",)
    priority: Annotated[
        PriorityName | None, live("of its requests; absent: the priority of the model")
    ] = None
    rate_limit: Annotated[
        PerMinute | None, live("requests for answers in a minute; absent: any")
    ] = None
    may_evict: Annotated[bool, live("false: its requests only use room that is free")] = True

    def __repr__(self) -> str:
        return f"ApiKey({self.name!r})"


class Server(_Struct, frozen=True, kw_only=True):
    """The listener. Each key but `api_keys` is also a variable `MLX_GATEWAY_<KEY>`, and host, port,
    log_level and allow_insecure are flags of `serve`; a list is separated by commas there."""

    host: Annotated[
        str, restart("address to listen on", min_length=1, max_length=255, examples=["127.0.0.1"])
    ] = "127.0.0.1"
    port: Annotated[int, restart("port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    drain_s: Annotated[Seconds, live("how long running calls may take after SIGTERM")] = 10
    commit_after_s: Annotated[
        Seconds,
        live("how long a streamed request waits for room before its headers are sent"),
    ] = 10
    heartbeat_s: Annotated[
        Seconds, live("a silent stream gets a heartbeat after so long; 0 switches them off")
    ] = 10
    write_stall_s: Annotated[
        PositiveSeconds, live("a client that takes nothing for so long is cut off")
    ] = 60
    request_timeout_s: Annotated[
        PositiveSeconds | None,
        live("how long a request may take that names no timeout of its own; absent: any time"),
    ] = None
    max_body_mb: Annotated[
        int, live("largest request body, in MiB; a larger one is refused", ge=1, le=1024)
    ] = 16
    max_upload_mb: Annotated[
        int, live("largest upload of a file, in MiB; a larger one is refused", ge=1, le=65_536)
    ] = 512
    log_level: Annotated[LogLevel, live("how much is logged")] = "info"
    log_format: Annotated[
        Literal["text", "json"], live("json: one object in each line, for programs")
    ] = "text"
    log_file: Annotated[
        Place | None,
        restart("a file for the log, put aside at 10 MiB; absent: stderr", examples=["/tmp/log"]),
    ] = None
    log_prompts: Annotated[
        bool, live("write the beginning of each request into the log: what people ask is in it")
    ] = False
    responses_store: Annotated[
        Literal["memory", "disk"],
        restart("where responses that clients may continue are kept; on disk they outlast a stop"),
    ] = "memory"
    responses_mb: Annotated[
        int, restart("room for them, in MiB; the oldest make room", ge=1, le=65_536)
    ] = 64
    responses_ttl_s: Annotated[
        PositiveSeconds, restart("one that nobody has used for so long is dropped")
    ] = 3600
    api_keys: Annotated[
        tuple[ApiKey, ...],
        live("who may use the gateway; none: this machine alone, with any right"),
    ] = ()
    allow_insecure: Annotated[
        bool, live("serve other machines without keys: everyone has every right")
    ] = False
    metrics_auth: Annotated[
        bool, live("whether /metrics and /v1/status ask for a key, where there are keys")
    ] = True
    prevent_sleep: Annotated[
        bool, live("on a Mac: no sleep for want of a user while calls run")
    ] = True
    cors_origins: Annotated[
        tuple[Place, ...],
        live("web pages that may use the gateway; * for all", examples=[["https://chat.example"]]),
    ] = ()
    hosts: Annotated[
        tuple[Name, ...],
        live("names beside this machine's own under which it may be asked", examples=[["ai.lan"]]),
    ] = ()
    media_roots: Annotated[
        tuple[Root, ...],
        live(
            "folders whose files requests may name as media with file:// addresses; none: no file",
            examples=[["/srv/images"]],
        ),
    ] = ()


# --- models -----------------------------------------------------------------------------------


class ExitStep(_Struct, frozen=True, kw_only=True):
    """A scripted load that ends the process."""

    exit: Annotated[int, restart("exit code; above 128 a signal", ge=0, le=255)]


LoadStep = Literal["ok", "error", "hang"] | ExitStep


class Scripted(_Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of `engine: scripted`, a real engine process without a model.

    `msgspec.to_builtins` gives what was set, as the engine takes it.
    """

    size_gb: Annotated[Gigabytes, restart("memory it claims")] = 0.0
    kv_gb_per_1k: Annotated[
        Gigabytes, restart("memory it claims for each 1,000 tokens of running calls")
    ] = 0.0
    load_s: Annotated[Seconds, restart("how long a load takes")] = 0.0
    load_stall_at: Annotated[Fraction | None, restart("a load stops for good at this fraction")] = (
        None
    )
    tokens_per_s: Annotated[
        Rate | None,
        restart("tokens a second of each call; absent: as fast as possible"),
    ] = None
    prefill_s: Annotated[Seconds, restart("how long each prompt takes")] = 0.0
    fail_loads: Annotated[
        Count | tuple[LoadStep, ...],
        restart(
            "the first loads that fail: how many, or one step for each load",
            examples=[2, ["error", "ok", "hang", {"exit": 139}]],
        ),
    ] = 0
    exit_after: Annotated[Count | None, restart("the process exits after so many deltas")] = None
    hang_after: Annotated[Count | None, restart("the work thread blocks after so many")] = None
    freeze_after: Annotated[Count | None, restart("the process stops after so many")] = None
    ignore_term: Annotated[bool, restart("take no notice of SIGTERM")] = False
    stderr_flood: Annotated[
        bool | Count, restart("write much to stderr: whether, or how many lines")
    ] = False
    deltas: Annotated[
        str | tuple[str, ...] | Annotated[int, Meta(ge=0, le=10_000_000)] | None,
        restart("the reply: a text, its deltas, or a number of words; absent: a sentence"),
    ] = None
    vector_dim: Annotated[int, restart("values of a vector, of kind: embedding", ge=1, le=8192)] = (
        384
    )


class Defaults(_Struct, frozen=True, kw_only=True):
    """What an entry may say and `defaults:` may say for every entry.

    An entry's own key replaces the default as a whole, also where it is a mapping; `null` switches
    an optional default off.
    """

    kind: Annotated[Kind | None, restart("what it does; absent: as its own config says")] = None
    mllm: Annotated[bool, restart("the same as kind: vision")] = False
    tags: Annotated[tuple[Name, ...], live("free words, shown with the model")] = ()
    pin: Annotated[bool, live("never evicted to make room or for idleness")] = False
    preload: Annotated[bool, live("load it at start")] = False
    ttl_s: Annotated[Seconds | None, live("unload after so long without a call")] = None
    priority: Annotated[PriorityName, live("whose requests wait less for room")] = "normal"
    max_concurrency: Annotated[int, live("calls that run at the same time", ge=1, le=1024)] = 8
    max_queue: Annotated[
        int, live("calls that wait for their turn; more are refused", ge=0, le=65536)
    ] = 64
    continuous_batching: Annotated[bool | None, live("false is the same as max_concurrency: 1")] = (
        None
    )
    context_length: Annotated[
        Tokens | None,
        restart("longest context in tokens; absent: the model's own"),
    ] = None
    estimated_memory_gb: Annotated[
        PositiveGigabytes | None,
        live("memory of the weights; absent: as the files say", examples=[36, "36GB"]),
    ] = None
    kv_memory_gb: Annotated[
        PositiveGigabytes | None,
        live(
            "memory for the context of running calls; absent: one full context or 15 % of the "
            "budget, whichever is less; of embedding and rerank: for one batch, and absent as much "
            "as the weights, from 256 MiB to 2 GiB"
        ),
    ] = None
    prompt_cache_gb: Annotated[
        Gigabytes | None,
        live("memory for prompts that were seen before; absent: half of the KV memory"),
    ] = None
    prompt_cache_disk_gb: Annotated[
        Gigabytes,
        restart("room on disk for prompts, which then outlast the model's process; 0: none"),
    ] = 0.0
    prompt_cache_disk_days: Annotated[
        Days, restart("a prompt on disk that was not used for so long is removed")
    ] = 7
    warm_prompts: Annotated[
        Place | list[Any] | None,
        live(
            "beginnings of conversations to have in the prompt cache after each load: lists of "
            "messages, or a JSON file of such lists",
            examples=[[[{"role": "system", "content": "You are an agent."}]], "agents.json"],
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        PositiveFraction | None,
        live("the most this model may take, as a fraction of the budget"),
    ] = None
    temperature: Annotated[Temperature | None, live("of requests that name none")] = None
    top_p: Annotated[PositiveFraction | None, live("of requests that name none")] = None
    top_k: Annotated[TopK | None, live("of requests that name none; 0 is off")] = None
    min_p: Annotated[Fraction | None, live("of requests that name none")] = None
    max_tokens: Annotated[
        Tokens | None,
        live("of requests that name none; absent: up to the context length"),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any],
        live("arguments of the chat template", examples=[{"enable_thinking": False}]),
    ] = {}
    tool_parser: Annotated[ToolParser | None, live("format of tool calls")] = None
    reasoning_parser: Annotated[ReasoningParser | None, live("format of reasoning")] = None
    audio_transcriber: Annotated[
        Name | None,
        live(
            "another entry, of kind transcription, that turns audio in chats into text for a "
            "model that does not hear"
        ),
    ] = None
    stream_interval: Annotated[
        int, live("tokens that are joined into one streamed event", ge=1, le=1024)
    ] = 1
    env: Annotated[dict[str, str], restart("environment variables of the engine process")] = {}
    trust_remote_code: Annotated[bool, restart("run Python code that comes with the model")] = False
    step_target_ms: Annotated[
        int,
        restart(
            "how long running calls wait for a piece of another call's prompt: pieces are sized "
            "for it, from 64 to 2048 tokens, as the speed of the model is learned",
            ge=1,
            le=60_000,
        ),
    ] = 150
    prefill_step_size: Annotated[
        StepTokens | None,
        restart("tokens of a prompt that are taken in at once; absent: as step_target_ms says"),
    ] = None
    enable_mtp: Annotated[bool, restart("native multi-token prediction; no effect yet")] = False
    specprefill: Annotated[bool | None, live("no effect yet")] = None
    specprefill_threshold: Annotated[Count | None, live("no effect yet")] = None
    specprefill_keep_pct: Annotated[Fraction | None, live("no effect yet")] = None
    specprefill_draft_model: Annotated[Place | None, live("no effect yet")] = None


class Entry(Defaults, frozen=True, kw_only=True):
    """One model under one name: a folder, a Hugging Face id, a script, or a variant of another."""

    name: Annotated[Name, restart("what requests call it")]
    path: Annotated[Place | None, restart("folder of the model")] = None
    source: Annotated[
        Place | None,
        restart("folder, or Hugging Face id in the local cache"),
    ] = None
    model: Annotated[
        Place | None,
        restart("folder, or Hugging Face id in the local cache"),
    ] = None
    engine: Annotated[Literal["scripted"] | None, restart("an engine that needs no model")] = None
    scripted: Annotated[Scripted | None, restart("options of engine: scripted")] = None
    of: Annotated[
        Name | None,
        restart("a variant: another entry's name; it shares that entry's loaded model"),
    ] = None
    aliases: Annotated[tuple[Name, ...], live("other names of the same model")] = ()
    description: Annotated[str, live("shown with the model", max_length=4096)] = ""


class Registry(_Struct, frozen=True, kw_only=True):
    """The whole file."""

    manager: Annotated[Manager, live("the memory budget and how models share it")] = Manager()
    server: Annotated[Server, live("the listener")] = Server()
    defaults: Annotated[Defaults, live("keys that count for every model")] = Defaults()
    models: Annotated[tuple[Entry, ...], live("the models")] = ()


ORIGINS = ("path", "source", "model", "engine")
"""Exactly one of these, or `of`, says where an entry's model comes from."""

# fmt: off
VARIANT_KEYS = frozenset((
    "name", "of", "aliases", "description", "tags", "temperature", "top_p", "top_k", "min_p",
    "max_tokens", "chat_template_kwargs", "tool_parser", "reasoning_parser", "stream_interval",
))
# fmt: on
"""What a variant may say for itself; everything else is its base's."""


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
