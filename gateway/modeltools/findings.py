"""What is worth knowing of a model before it is served: its form, its fit, and what stands in the
way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from gateway.modeltools.listing import Listing
from gateway.registry.find import Model
from gateway.registry.limits import limits
from gateway.registry.schema import Entry, Kind
from gateway.registry.sizes import Size
from gateway.registry.units import format_size

Format = Literal["MLX", "safetensors", "npz", "GGUF", "PyTorch", "none"]

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", ".tiktoken", "vocab.txt", "vocab.json")
_GENERATES = ("text", "vision")


class Machine(msgspec.Struct, frozen=True):
    """Where it would run: bytes for all models together, and whether a GPU does the work."""

    budget_bytes: int
    gpu: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `model inspect` shows; None where it is not known or does not apply."""

    place: str
    format: Format
    files: int
    file_bytes: int
    kind: Kind | None
    architecture: str | None
    quantisation: str | None
    types: dict[str, int]
    weights_bytes: int | None
    context_length: int | None
    kv_bytes_per_token: int | None
    needs_bytes: int | None
    budget_bytes: int
    fits: bool | None
    chat_template: bool
    origin: dict[str, Any]
    warnings: tuple[str, ...]


def report(listing: Listing, machine: Machine) -> Report:
    size = listing.size
    needs = None if size is None else _needs(size, listing, machine)
    return Report(
        place=listing.place,
        format=format_of(listing),
        files=len(listing.files),
        file_bytes=listing.bytes,
        kind=size.kind if size else None,
        architecture=_architecture(listing.config),
        quantisation=quantisation_of(listing.config),
        types=listing.types,
        weights_bytes=size.weights_bytes if size else None,
        context_length=size.context_length if size else None,
        kv_bytes_per_token=size.kv_bytes_per_token or None if size else None,
        needs_bytes=needs,
        budget_bytes=machine.budget_bytes,
        fits=None if needs is None else needs <= machine.budget_bytes,
        chat_template=listing.chat_template,
        origin=listing.origin,
        warnings=tuple(_warnings(listing, machine, needs)),
    )


def _needs(size: Size, listing: Listing, machine: Machine) -> int:
    """As a registry's entry without settings would be charged."""
    if not machine.gpu and (half := listing.types.get("F16", 0)):
        size = msgspec.structs.replace(size, weights_bytes=size.weights_bytes + half)
    model = Model(entry=Entry(name="it", kind=size.kind), size=size)
    return limits(model, machine.budget_bytes).charge_bytes


def format_of(listing: Listing) -> Format:
    if listing.named(".safetensors"):
        ours = listing.library == "mlx" or "quantization" in listing.config
        return "MLX" if ours else "safetensors"
    if listing.named("weights.npz"):
        return "npz"
    if listing.named(".gguf"):
        return "GGUF"
    return "PyTorch" if listing.named(*PICKLES) else "none"


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """`4 bit, groups of 64, affine` of MLX's own; of others the method that they name."""
    if isinstance(own := config.get("quantization"), Mapping) and own.get("bits"):
        parts = [f"{own['bits']} bit", f"groups of {own.get('group_size')}", own.get("mode")]
        if any(isinstance(value, Mapping) for value in own.values()):
            parts.append("mixed")
        return ", ".join(str(part) for part in parts if part)
    if isinstance(other := config.get("quantization_config"), Mapping):
        return str(other.get("quant_method") or "unknown method")
    return None


def _architecture(config: Mapping[str, Any]) -> str | None:
    named = config.get("architectures")
    if isinstance(named, list) and named:
        return str(named[0])
    return str(config["model_type"]) if config.get("model_type") else None


def _warnings(listing: Listing, machine: Machine, needs: int | None) -> Iterator[str]:
    yield from _of_files(listing)
    if listing.size is not None:
        yield from _of_model(listing, machine)
    if needs is not None and needs > machine.budget_bytes:
        yield (
            f"it needs {format_size(needs)} and the budget is {format_size(machine.budget_bytes)}: "
            "requests for it would be refused"
        )


def _of_files(listing: Listing) -> Iterator[str]:
    form = format_of(listing)
    if listing.named("adapter_config.json"):
        yield "it is an adapter, which works only merged into the model it was made for"
    if form == "GGUF":
        yield "GGUF is not served; take the repository that it was made of"
    elif form == "PyTorch":
        yield "it has no safetensors, and no engine reads PyTorch's own files"
    elif listing.problem is not None:
        yield f"it cannot be loaded: {listing.problem}"
    if pickles := listing.named(*PICKLES):
        yield f"{_some(pickles)}: pickles run code when they are read; no engine of ours reads them"
    if listing.gated:
        yield "it is gated: its owner has to let your account in before it can be fetched"


def _of_model(listing: Listing, machine: Machine) -> Iterator[str]:
    kind = listing.size.kind if listing.size else None
    if kind in (*_GENERATES, "embedding", "rerank") and not listing.named(*_TOKENIZERS):
        yield "it has no tokenizer"
    if kind in _GENERATES and not listing.chat_template:
        yield "it has no chat template: a base model, good for /v1/completions"
    if "auto_map" in listing.config:
        yield "it names code of its own; where MLX has none for it, it needs trust_remote_code"
    if not machine.gpu and listing.types.get("F16", 0) > sum(listing.types.values()) // 2:
        yield "float16 becomes float32 on a CPU, which takes twice the memory"
    if "quantization_config" in listing.config and "quantization" not in listing.config:
        method = quantisation_of(listing.config)
        yield f"it is quantised by {method}, which MLX reads for some models only"


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
