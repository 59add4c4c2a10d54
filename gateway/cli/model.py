"""`mlx-gateway model ...`: models as files, and as entries of the registry."""

from __future__ import annotations

import argparse

from gateway.cli import (
    model_acquire,
    model_convert,
    model_inspect,
    model_qualify,
    model_register,
)

ACTIONS = (model_inspect, model_acquire, model_convert, model_register, model_qualify)


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("model", help="look at models, fetch, convert and register them")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for action in ACTIONS:
        action.add_parser(actions)
