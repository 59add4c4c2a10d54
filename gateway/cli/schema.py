"""`mlx-gateway schema`: the registry's JSON Schema, for editors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

MODELINE = "# yaml-language-server: $schema={}"


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "schema",
        help="the registry's JSON Schema, for editors",
        description="Prints the JSON Schema of the registry, or writes it to a file. An editor "
        "uses it when the registry begins with the line that is then shown.",
    )
    parser.add_argument("-o", "--output", metavar="FILE")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.registry.json_schema import json_schema

    text = json.dumps(json_schema(), indent=2) + "\n"
    if args.output is None:
        sys.stdout.write(text)
        return 0
    path = Path(args.output).absolute()
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"mlx-gateway: {path} cannot be written: {error.strerror or error}\n")
        return 1
    sys.stderr.write(f"put this line first in the registry:\n{MODELINE.format(path)}\n")
    return 0
