"""The command line: one module per verb, each with `add_parser`; imports are made by the verb."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.cli import check, diff, serve

VERBS = (serve, check, diff)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with the verb's function as `run`. Exits with 2 on a mistake."""
    parser = argparse.ArgumentParser(
        prog="mlx-gateway", description="One port for many MLX models, under one memory budget."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    return parser.parse_args(argv)
