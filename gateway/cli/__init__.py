"""The command line: one module per verb, each with `add_parser`; imports are made by the verb."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway import __version__
from gateway.cli import (
    bench,
    chat,
    check,
    completion,
    diff,
    doctor,
    init,
    logs,
    look,
    model,
    schema,
    serve,
    service,
    steer,
)

VERBS = (
    *(serve, init, check, diff, schema),
    *(look, steer, logs, chat, model, doctor, bench, service, completion),
)


def parser() -> argparse.ArgumentParser:
    """Everything that can be said on the command line."""
    made = argparse.ArgumentParser(
        prog="mlx-gateway", description="One port for many MLX models, under one memory budget."
    )
    made.add_argument("--version", action="version", version=f"mlx-gateway {__version__}")
    verbs = made.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    return made


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the verb's function as `run`. Exits with 2 on a mistake."""
    return parser().parse_args(argv)
