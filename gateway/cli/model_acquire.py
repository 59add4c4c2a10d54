"""`mlx-gateway model acquire`: a model from the Hugging Face hub, whole or not at all."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from gateway.cli import exits
from gateway.cli.client import CliError, guarded
from gateway.cli.screen import plain, say, say_json

KINDS = ("text", "vision", "embedding", "rerank", "transcription", "speech")


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "acquire",
        help="fetch a model from the hub",
        description="Fetches a model into a folder, with a manifest of where it is from and the "
        "checksums of its files. What was interrupted goes on where it was. HF_TOKEN, HF_HOME and "
        "HF_ENDPOINT count as in the hub's own tools.",
    )
    parser.add_argument("id", help="Hugging Face id, owner/name")
    parser.add_argument("--revision", help="branch, tag or commit (default: main)")
    parser.add_argument("--target-dir", metavar="DIR", help="default: among the gateway's models")
    parser.add_argument("--staging-dir", metavar="DIR", help="default: beside the target")
    parser.add_argument("--kind", choices=KINDS, default="text", help="what it is for")
    parser.add_argument("--json", action="store_true", help="print the manifest")
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    """Raises `CliError`."""
    from engines import wire
    from gateway.cli.model_task import do
    from gateway.modeltools.local import default_target, looks_like_id, manifest_in, staging_of
    from gateway.registry.units import format_size

    if not looks_like_id(args.id):
        raise CliError(f"{args.id!r} is no Hugging Face id, which is owner/name", exits.USAGE)
    target = Path(args.target_dir or default_target(args.id, os.environ)).absolute()
    staging = Path(args.staging_dir or staging_of(target, "acquiring")).absolute()
    result = do(
        wire.Acquire(args.id, str(target), str(staging), args.revision, args.kind),
        interrupted=f"interrupted; {staging} keeps what has come, and the same command goes on",
    )
    manifest = manifest_in(target)
    if args.json:
        say_json(manifest)
        return exits.DONE
    size = format_size(sum(file["size"] for file in manifest["files"]))
    there = "was there already" if result["already"] else f"{len(manifest['files'])} files, {size}"
    say(plain(f"{args.id} at {manifest['commit']} is in {target}: {there}"))
    name = args.id.rpartition("/")[2].lower()
    path = shlex.quote(str(target))
    say(f"next: mlx-gateway model register {shlex.quote(name)} --path {path}", to=sys.stderr)
    return exits.DONE
