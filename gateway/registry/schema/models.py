"""Models as a registry says them: entries, their defaults, scripts instead of models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from gateway.registry.schema.values import (
    Count,
    Days,
    Fraction,
    Gigabytes,
    Kind,
    Name,
    Part,
    Place,
    PositiveFraction,
    PositiveGigabytes,
    PriorityName,
    Rate,
    ReasoningParser,
    Seconds,
    StepTokens,
    Temperature,
    Tokens,
    ToolParser,
    TopK,
    live,
    restart,
)


class ExitStep(Part, frozen=True, kw_only=True):
    """A scripted load that ends the process."""

    exit: Annotated[int, restart("exit code; above 128 a signal", ge=0, le=255)]


LoadStep = Literal["ok", "error", "hang"] | ExitStep


class Scripted(Part, frozen=True, kw_only=True, omit_defaults=True):
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


class Defaults(Part, frozen=True, kw_only=True):
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


ORIGINS = ("path", "source", "model", "engine")
"""Exactly one of these, or `of`, says where an entry's model comes from."""

# fmt: off
VARIANT_KEYS = frozenset((
    "name", "of", "aliases", "description", "tags", "temperature", "top_p", "top_k", "min_p",
    "max_tokens", "chat_template_kwargs", "tool_parser", "reasoning_parser", "stream_interval",
))
# fmt: on
"""What a variant may say for itself; everything else is its base's."""
