"""What the hub says about a model, for a look before it is fetched."""

from __future__ import annotations

import json
from typing import Any

from engines import wire
from engines.tools import hub
from engines.tools.errors import ToolError
from engines.tools.manifest import Report

_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TOKENIZER = "tokenizer_config.json"

MAX_CONFIG_BYTES = 2**20
"""It travels in one frame, with the names of the files."""


def look_up(task: wire.LookUp, report: Report) -> dict[str, Any]:
    """Files, config and the like, as `gateway.modeltools.listing` takes it. Raises `ToolError`."""
    report("asking the hub", 0, 0)
    repo = hub.repository(task.repo, task.revision)
    return {
        "repo": repo.id,
        "commit": repo.commit,
        "files": [[file.path, file.size] for file in repo.files],
        "config": _config(repo),
        "chat_template": any(map(repo.has, _TEMPLATES))
        or bool(_json(repo, _TOKENIZER).get("chat_template")),
        "tags": repo.tags,
        "gated": repo.gated,
        "types": repo.types or {},
    }


def _config(repo: hub.Repository) -> dict[str, Any]:
    if any(file.path == "config.json" and file.size > MAX_CONFIG_BYTES for file in repo.files):
        raise ToolError(f"config.json of {repo.id} is larger than {MAX_CONFIG_BYTES} bytes")
    return _json(repo, "config.json")


def _json(repo: hub.Repository, path: str) -> dict[str, Any]:
    """A JSON object of the repository; an empty one where it is not there."""
    if not repo.has(path):
        return {}
    try:
        found = json.loads(hub.small(repo, path))
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{path} of {repo.id} cannot be understood: {error}") from error
    return found if isinstance(found, dict) else {}
