"""`mlx-gateway ps`, `ls` and `explain`: what a running gateway has, and what it would do."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from gateway.cli import exits
from gateway.cli.client import Gateway, add_connection, connect, guarded
from gateway.cli.screen import gib, plain, say, say_json, seconds, table

RESIDENT = frozenset({"loading", "ready", "draining", "unloading", "failed"})


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ps = verbs.add_parser("ps", help="models in memory: state, requests, memory")
    ps.add_argument("-a", "--all", action="store_true", help="every model of the registry")
    add_connection(ps)
    ps.set_defaults(run=guarded(run_ps))
    ls = verbs.add_parser("ls", help="models that can be asked for, by name and alias")
    add_connection(ls)
    ls.set_defaults(run=guarded(run_ls))
    explain = verbs.add_parser("explain", help="what a request for a model would meet now")
    explain.add_argument("model")
    add_connection(explain)
    explain.set_defaults(run=guarded(run_explain))


def run_ps(args: argparse.Namespace) -> int:
    status = connect(args).get("/v1/status")
    if args.json:
        say_json(status)
        return exits.DONE
    models = [m for m in status["models"] if args.all or m["state"] in RESIDENT or m["waiting"]]
    if models:
        head = ("NAME", "KIND", "STATE", "REQUESTS", "WAITING", "MEMORY", "IDLE", "PID", "")
        table(head, [_ps_row(model) for model in models])
    else:
        say("no model is in memory")
    memory = status["memory"]
    used, budget = gib(memory["committed_bytes"]), gib(memory["budget_bytes"])
    stranded = memory["stranded_bytes"]
    rest = f", {gib(stranded)} not given back yet" if stranded else ""
    say(f"{used} of {budget} reserved{rest}{'; draining' if status['draining'] else ''}")
    return exits.DONE


def _ps_row(model: dict[str, Any]) -> tuple[object, ...]:
    state = model["state"]
    if state == "loading" and model["load_total"]:
        state = f"loading {model['load_done'] / model['load_total']:.0%}"
    return (
        model["name"],
        model["kind"] or "",
        state,
        model["leases"],
        model["waiting"],
        gib(model["measured_bytes"] or model["charge_bytes"]),
        seconds(model["idle_s"]),
        model["pid"] or "-",
        "pinned" if model["pinned"] else model["reason"] or "",
    )


def run_ls(args: argparse.Namespace) -> int:
    models = connect(args).get("/v1/models")["data"]
    if args.json:
        say_json(models)
        return exits.DONE
    table(
        ("NAME", "KIND", "STATUS", "NEEDS", "CONTEXT", "ALIASES", ""),
        [
            (
                model["id"],
                model["meta"]["kind"] or "",
                model["status"]["value"],
                gib(model["meta"]["needs_bytes"]),
                model["context_length"] or "-",
                ", ".join(model["aliases"]),
                model["status"].get("reason") or model["description"],
            )
            for model in models
        ],
    )
    return exits.DONE


def run_explain(args: argparse.Namespace) -> int:
    told = explained(connect(args), args.model)
    if args.json:
        say_json(told)
    else:
        say(plain(told["sentence"]))
    return exits.FAILED if told.get("refusal") else exits.DONE


def explained(gateway: Gateway, model: str) -> dict[str, Any]:
    answer: dict[str, Any] = gateway.get(f"/admin/explain?model={quote(model, safe='')}")
    return answer
