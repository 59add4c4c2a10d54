"""The listener and who may use it, as a registry says it."""

from __future__ import annotations

from typing import Annotated, Literal

from gateway.registry.schema.values import (
    LogLevel,
    Name,
    Part,
    PerMinute,
    Place,
    PositiveSeconds,
    PriorityName,
    Right,
    Root,
    Seconds,
    Secret,
    live,
    restart,
)


class ApiKey(Part, frozen=True, kw_only=True):
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


class Server(Part, frozen=True, kw_only=True):
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
