"""API keys of a registry: rules between them, and those that lie in files. No message shows one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gateway.registry.schema import ApiKey, Registry, Server
from gateway.registry.walk import Walk

MAX_FILE_BYTES = 4096

_KEY = re.compile(r"[\x21-\x7e]{1,512}")


class KeyFileError(Exception):
    """Why a key file cannot be used."""


def settled(walk: Walk, registry: Registry, base: Path, environ: Mapping[str, str]) -> Registry:
    """The registry with every `key_file` replaced by the key in it; reports what is wrong.

    A relative path counts from `base`, `~` is the home folder of `environ`.
    """
    server = registry.server
    _check_origins(walk, server)
    if any(problem.key.startswith("server.api_keys") for problem in walk.problems):
        return registry  # in place of what is wrong there may be anything
    keys = []
    first_by_name: dict[str, int] = {}
    first_by_key: dict[str, str] = {}
    for index, entry in enumerate(server.api_keys):
        path = f"server.api_keys[{index}]"
        key = _settled(walk, entry, path, base, environ)
        first = first_by_name.setdefault(key.name, index)
        if first != index:
            walk.report("error", f"{path}.name", f"{key.name!r} is the name of another key too")
        if key.key is not None and first_by_key.setdefault(key.key, key.name) != key.name:
            walk.report("error", path, f"the same key as {first_by_key[key.key]!r}")
        keys.append(key)
    return msgspec.structs.replace(
        registry, server=msgspec.structs.replace(server, api_keys=tuple(keys))
    )


def _settled(walk: Walk, key: ApiKey, path: str, base: Path, environ: Mapping[str, str]) -> ApiKey:
    if (key.key is None) == (key.key_file is None):
        walk.report("error", path, "needs one of key and key_file")
        return key
    if key.key_file is None:
        return key
    try:
        text = read_key(_expanded(key.key_file, base, environ))
    except KeyFileError as error:
        walk.report("error", f"{path}.key_file", str(error))
        return key
    return msgspec.structs.replace(key, key=text)


def read_key(path: Path) -> str:
    """The key in a file. Raises `KeyFileError`, also when others than its owner can read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise KeyFileError(f"{path} is not a file")
            if found.st_mode & 0o077:
                raise KeyFileError(f"others can read {path}; chmod 600 {path}")
            data = os.read(descriptor, MAX_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror or error}") from None
    text = data.decode("latin-1").strip()
    if not _KEY.fullmatch(text):
        raise KeyFileError(f"{path} has to hold one key of 1 to 512 ASCII characters, no blanks")
    return text


def _expanded(written: str, base: Path, environ: Mapping[str, str]) -> Path:
    if written.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], written[2:])
    return base / written


def _check_origins(walk: Walk, server: Server) -> None:
    for index, origin in enumerate(server.cors_origins):
        if origin and not is_origin(origin):
            walk.report(
                "error",
                f"server.cors_origins[{index}]",
                "expected an origin such as https://chat.example or http://localhost:3000, or *",
            )


def is_origin(text: str) -> bool:
    """`https://host` or `http://host:port`, as a browser sends it, or `*` for all."""
    if text == "*":
        return True
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.netloc) and text.rstrip("/") == f"{parts.scheme}://{parts.netloc}"
