"""What earlier loads measured, kept over restarts in `sizes.json` of the state directory.

A `Remembered` owns its file and is its one writer. Entries are keyed by the fingerprint of the
model's files and by kind, since the same files take more as a vision model than as a text model.
The file is a hint: one that is missing, broken or of another version counts as empty, and one
that cannot be written costs nothing but the hint.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engines import wire
from gateway.registry.find import Model

VERSION = 1
MAX_ENTRIES = 256
MAX_BYTES = 2**20
NOISE = 0.01
"""A new measurement that differs by no more than this share is not worth a write."""

_Bytes = Annotated[int, Meta(ge=0, le=2**50)]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One load: bytes of the weights, bytes of the process beside the model, seconds it took."""

    weights_bytes: Annotated[int, Meta(ge=1, le=2**50)]
    overhead_bytes: _Bytes = 0
    load_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class _File(msgspec.Struct):
    version: int
    sizes: dict[str, Measured]


class Remembered:
    """At most `MAX_ENTRIES` measurements, least recently loaded first.

    `read`, `get` and `record` belong to one thread; `save` may run in another, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed_saves = 0
        self._failing = False
        # Replaced as a whole, never changed, because `save` may read it from another thread.
        self._sizes: dict[str, Measured] = {}

    def read(self) -> str | None:
        """Takes in the file. Returns why it was ignored, None when it was read or is not there."""
        try:
            with self.path.open("rb") as stream:
                file = msgspec.json.decode(stream.read(MAX_BYTES), type=_File)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self.path} is ignored: {error.strerror or error}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"{self.path} is ignored, and replaced after the next load: {error}"
        if file.version != VERSION:
            return f"{self.path} is ignored: it is of version {file.version}, not {VERSION}"
        self._sizes = _newest(file.sizes)
        return None

    def get(self, model: Model) -> Measured | None:
        """What the last load of these files measured."""
        key = _key(model)
        return None if key is None else self._sizes.get(key)

    def record(self, model: Model, memory: wire.Memory, load_s: float) -> bool:
        """Takes in what a load measured when it was ready; whether that is worth a `save`.

        A scripted engine claims its memory, so there is nothing to remember of it.
        """
        key = _key(model)
        if key is None or not 1 <= memory.weights_bytes <= 2**50:
            return False
        known = (
            memory.weights_bytes
            + memory.kv_bytes
            + memory.prompt_cache_bytes
            + memory.mlx_cache_bytes
        )
        new = Measured(
            weights_bytes=memory.weights_bytes,
            overhead_bytes=min(max(0, memory.process_bytes - known), 2**50),
            load_s=min(max(0.0, load_s), 1e6),
        )
        old = self._sizes.get(key)
        others = {name: size for name, size in self._sizes.items() if name != key}
        self._sizes = _newest({**others, key: new})
        return old is None or _differ(old, new)

    def save(self) -> str | None:
        """Writes the file whole or not at all; raises nothing.

        Returns what is wrong the first time it fails, and None until it has worked again;
        `failed_saves` counts every failure.
        """
        data = msgspec.json.encode(_File(VERSION, self._sizes))
        temporary = self.path.with_name(f"{self.path.name}.new")
        try:
            temporary.write_bytes(data)
            temporary.chmod(0o600)
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self.failed_saves += 1
            first, self._failing = not self._failing, True
            return self._failure(error) if first else None
        self._failing = False
        return None

    def _failure(self, error: OSError) -> str:
        return (
            f"{self.path} cannot be written ({error.strerror or error}): sizes that loads measure "
            "are forgotten when the gateway stops; free space, or make its folder writable"
        )


def _key(model: Model) -> str | None:
    if model.entry.engine == "scripted" or model.size is None or not model.size.fingerprint:
        return None
    return f"{model.size.fingerprint}-{model.entry.kind}"


def _newest(sizes: dict[str, Measured]) -> dict[str, Measured]:
    return dict(list(sizes.items())[-MAX_ENTRIES:])


def _differ(old: Measured, new: Measured) -> bool:
    return any(
        abs(after - before) > NOISE * max(before, after)
        for before, after in (
            (old.weights_bytes, new.weights_bytes),
            (old.overhead_bytes, new.overhead_bytes),
        )
    )
