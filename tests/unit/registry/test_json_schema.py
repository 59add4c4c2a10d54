"""The JSON Schema says of a registry what the gateway says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.registry.json_schema import json_schema

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLE = Path(__file__).parents[3] / "registry.example.yaml"


def problems(document: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(document)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_example_is_valid() -> None:
    assert problems(yaml.safe_load(EXAMPLE.read_text())) == []


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"manager": {"memory_budget_gb": "80GB"}},
        {"manager": {"memory_budget_gb": "auto", "max_engines": "${env:ENGINES:-4}"}},
        {"models": [{"name": "m", "path": "/m", "kv_memory_gb": 4, "pin": "${env:PIN}"}]},
    ],
)
def test_what_is_right(document: Any) -> None:
    assert problems(document) == []


@pytest.mark.parametrize(
    "document",
    [
        {"mdels": []},
        {"manager": {"memory_budget_gb": "much"}},
        {"manager": {"load_concurrency": 0}},
        {"models": [{"path": "/m"}]},
        {"models": [{"name": "m", "path": "/m", "kind": "poem"}]},
        {"models": [{"name": "m", "engine": "scripted", "scripted": {"siez_gb": 1}}]},
    ],
)
def test_what_is_wrong(document: Any) -> None:
    assert problems(document)


def test_every_key_has_a_description() -> None:
    for name, part in SCHEMA["$defs"].items():
        for key, told in part["properties"].items():
            assert told.get("description"), f"{name}.{key}"
