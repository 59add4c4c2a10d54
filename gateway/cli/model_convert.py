"""`mlx-gateway model convert`: a model anew, quantised or with weights of another type."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli import exits
from gateway.cli.client import CliError, guarded
from gateway.cli.screen import plain, say, say_json

if TYPE_CHECKING:
    from engines import wire
    from gateway.modeltools.listing import Listing

MODES = ("affine", "mxfp4", "nvfp4", "mxfp8")
DTYPES = ("float16", "bfloat16", "float32")
PREDICATES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "convert",
        help="quantise a model, or change the type of its weights",
        description="Converts a model on this machine with the library that serves it, and "
        "records recipe, versions and checksums in a manifest beside the result.",
    )
    add = parser.add_argument
    add("source", metavar="PATH|ID", help="folder, or id of a model that was fetched")
    add("--output", required=True, metavar="DIR", help="must not exist, or be empty")
    add("--quantize", action="store_true", help="fewer bits per weight")
    add("--q-bits", type=int, metavar="N", help="default: 4")
    add("--q-group-size", type=int, metavar="N", help="weights that share a scale; default: 64")
    add("--q-mode", choices=MODES, default="affine")
    add("--quant-predicate", choices=PREDICATES, help="more bits for what matters more")
    add("--dtype", choices=DTYPES, help="of weights that are not quantised")
    add("--kind", choices=("text", "vision"), help="default: as its own config says")
    add("--dry-run", action="store_true", help="print the command and the manifest only")
    add("--json", action="store_true", help="print the manifest")
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    """Raises `CliError`."""
    from engines import wire
    from gateway.cli.model_task import do
    from gateway.modeltools.local import manifest_in, staging_of
    from gateway.modeltools.recipes import record
    from gateway.registry.units import format_size

    recipe = _recipe(args)
    source = _source(args.source)
    kind = _kind(args.kind, source)
    output = Path(args.output).absolute()
    _check(output)
    told = record(source.place, output, kind, recipe, _origin(source))
    if args.dry_run:
        say(told["command"])
        say_json(told)
        return exits.DONE
    staging = staging_of(output, "converting")
    task = wire.Convert(source.place, str(output), str(staging), kind, recipe, told)
    do(task, interrupted="interrupted; nothing was written to the output")
    manifest = manifest_in(output)
    if args.json:
        say_json(manifest)
        return exits.DONE
    size = sum(file["size"] for file in manifest["files"])
    say(plain(f"{output}: {format_size(size)}, from {format_size(source.bytes)}"))
    say(f"next: mlx-gateway model inspect {output}", to=sys.stderr)
    return exits.DONE


def _recipe(args: argparse.Namespace) -> wire.Recipe:
    from engines import wire
    from gateway.modeltools.recipes import mistake

    recipe = wire.Recipe(
        quantize=args.quantize,
        q_bits=args.q_bits,
        q_group_size=args.q_group_size,
        q_mode=args.q_mode,
        quant_predicate=args.quant_predicate,
        dtype=args.dtype,
    )
    if (why := mistake(recipe)) is not None:
        raise CliError(why, exits.USAGE)
    return recipe


def _source(name: str) -> Listing:
    from gateway.modeltools.listing import of_folder
    from gateway.modeltools.local import find_local, looks_like_id
    from gateway.registry.find import NotFound

    try:
        source = of_folder(find_local(name, None, os.environ).absolute())
    except NotFound as error:
        hint = f": run `mlx-gateway model acquire {name}` first" if looks_like_id(name) else ""
        why = f"{name} is not on this machine{hint}" if hint else str(error)
        raise CliError(why, exits.NOT_FOUND) from error
    except OSError as error:
        raise CliError(f"{name} cannot be read: {error.strerror or error}") from error
    if source.problem is not None:
        raise CliError(f"{source.place} cannot be converted: {source.problem}")
    return source


def _kind(asked: wire.ToolKind | None, source: Listing) -> wire.ToolKind:
    from gateway.modeltools.recipes import CONVERTED

    detected: wire.ToolKind = source.size.kind if source.size else "text"
    found = detected if asked is None else asked
    if found not in CONVERTED:
        raise CliError(
            f"{source.place} is a model of kind {found}; text and vision models are converted. "
            "Say --kind text if it is built like a text model"
        )
    return found


def _check(output: Path) -> None:
    if output.is_dir() and not any(output.iterdir()):
        return
    if output.exists() or output.is_symlink():
        raise CliError(f"{output} is there already; name another folder", exits.USAGE)


def _origin(source: Listing) -> dict[str, Any]:
    """What says which model this was made of."""
    fingerprint = source.size.fingerprint if source.size else ""
    return {"fingerprint": fingerprint, **{key: source.origin[key] for key in source.origin}}
