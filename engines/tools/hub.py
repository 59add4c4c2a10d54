"""The Hugging Face hub, through its own library: what a repository has, and bytes of it.

`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and the like count as everywhere. The library's own downloads
throw a partial file away when a process ends; here it is kept, and the rest asked for by a range.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants, errors
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from engines.tools.choice import HubFile
from engines.tools.errors import ToolError
from engines.tools.manifest import sha256_of

TIMEOUT_S = 30.0
MAX_SMALL_BYTES = 16 * 2**20
MAX_FILES = 10_000

_BUSY = frozenset((408, 429, 500, 502, 503, 504))


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a model. `types` counts its parameters by type, where the hub knows."""

    id: str
    commit: str
    files: tuple[HubFile, ...]
    tags: tuple[str, ...] = ()
    gated: bool = False
    types: dict[str, int] | None = None

    def has(self, path: str) -> bool:
        return any(file.path == path for file in self.files)


def endpoint() -> str:
    """Which hub this is."""
    return str(constants.ENDPOINT)


def repository(repo: str, revision: str | None) -> Repository:
    """Raises `ToolError`."""
    with plain_errors(repo, revision):
        info = huggingface_hub.HfApi().model_info(
            repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S
        )
    if not info.sha:
        raise ToolError(f"{constants.ENDPOINT} does not say which commit of {repo} this is")
    parameters = getattr(getattr(info, "safetensors", None), "parameters", None)
    siblings = info.siblings or ()
    if len(siblings) > MAX_FILES:
        raise ToolError(f"{repo} has {len(siblings)} files; that is no model for one folder")
    return Repository(
        id=info.id or repo,
        commit=info.sha,
        files=tuple(_file(sibling) for sibling in siblings),
        tags=tuple(info.tags or ()),
        gated=bool(info.gated),
        types=dict(parameters) if parameters else None,
    )


def _file(sibling: Any) -> HubFile:
    lfs = sibling.lfs
    return HubFile(
        path=sibling.rfilename,
        size=(lfs.size if lfs else sibling.size) or 0,
        sha256=lfs.sha256 if lfs else None,
        git_id=sibling.blob_id,
    )


def small(repo: Repository, path: str) -> bytes:
    """A small file, read into memory. Raises `ToolError`."""
    found = next((file for file in repo.files if file.path == path), None)
    if found is None or found.size > MAX_SMALL_BYTES:
        raise ToolError(f"{path} of {repo.id} is missing or too large")
    buffer = _Memory()
    _get(repo, found, buffer, 0)
    return bytes(buffer.data)


def fetch(repo: Repository, file: HubFile, into: Path, hear: Callable[[int], None]) -> None:
    """Brings `into` to its full size, from where it ends. `hear` gets its size as it grows.

    Raises `ToolError`; the file stays as far as it came.
    """
    with into.open("ab", buffering=0) as raw:
        have = raw.tell()
        if have > file.size:
            raw.truncate(0)
            have = 0
        if file.size - have > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise ToolError(
                f"{file.path} of {repo.id} is larger than the hub gives at once; take a repository "
                "with its weights in more files"
            )
        if have < file.size:
            _get(repo, file, _Heard(raw, hear), have)


def check(file: HubFile, path: Path, repo: str) -> None:
    """Raises `ToolError` for other bytes than the hub promised, and deletes them."""
    if path.stat().st_size == file.size and _matches(file, path):
        return
    path.unlink()
    raise ToolError(
        f"{file.path} of {repo} came damaged: its checksum is not what the hub promises. It was "
        "deleted; try again. If it stays so, something on the way alters the file."
    )


def _matches(file: HubFile, path: Path) -> bool:
    if file.sha256 is not None:
        return sha256_of(path) == file.sha256
    blob = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    blob.update(path.read_bytes())
    return blob.hexdigest() == file.digest


def _get(repo: Repository, file: HubFile, into: Any, have: int) -> None:
    url = huggingface_hub.hf_hub_url(repo.id, file.path, revision=repo.commit)
    # Compressed answers cannot be resumed by a range.
    headers = {**build_hf_headers(), "accept-encoding": "identity"}
    with plain_errors(repo.id, repo.commit):
        http_get(url, into, resume_size=have, headers=headers, expected_size=file.size)


class _Heard:
    """A file as `http_get` needs it, that tells how far it has come."""

    def __init__(self, file: Any, hear: Callable[[int], None]) -> None:
        self._file = file
        self._hear = hear
        self.seek, self.truncate, self.tell = file.seek, file.truncate, file.tell

    def write(self, data: bytes) -> int:
        written = 0
        view = memoryview(data)
        while written < len(data):
            written += self._file.write(view[written:])
        self._hear(self._file.tell())
        return written


class _Memory:
    """As much of a file as `http_get` needs, in memory; always read from its start."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> int:
        self.data += data
        return len(data)

    def tell(self) -> int:
        return len(self.data)

    def seek(self, at: int) -> int:
        return at

    def truncate(self) -> int:
        self.data.clear()
        return 0


@contextlib.contextmanager
def plain_errors(repo: str, revision: str | None) -> Iterator[None]:
    """What the library raises, as `ToolError`s that say what to do."""
    try:
        yield
    except errors.HFValidationError as error:
        raise ToolError(f"{repo!r} is no Hugging Face id, which is owner/name", "usage") from error
    except errors.OfflineModeIsEnabled as error:
        raise ToolError(
            "HF_HUB_OFFLINE is set, so the hub is not asked; unset it", "unreachable"
        ) from error
    except errors.GatedRepoError as error:
        raise ToolError(_gated(repo), "refused") from error
    except errors.RepositoryNotFoundError as error:
        raise ToolError(_unknown(repo), "not_found") from error
    except errors.RevisionNotFoundError as error:
        raise ToolError(f"{repo} has no revision {revision}", "not_found") from error
    except errors.HfHubHTTPError as error:
        raise _refusal(error, repo) from error
    except errors.HTTPError as error:
        raise ToolError(
            f"{constants.ENDPOINT} does not answer: {error or type(error).__name__}", "unreachable"
        ) from error
    except OSError as error:
        raise ToolError(f"{repo}: {error}") from error


def _refusal(error: Any, repo: str) -> ToolError:
    status = error.response.status_code
    if status in (401, 403):
        return ToolError(
            f"{constants.ENDPOINT} refuses {repo} ({status}){_token_note()}", "refused"
        )
    said = f"{constants.ENDPOINT} answers {status} for {repo}"
    if status in _BUSY:
        return ToolError(f"{said}; try again later", "unreachable")
    return ToolError(said)


def _gated(repo: str) -> str:
    return (
        f"{repo} is gated: ask for access at {constants.ENDPOINT}/{repo} with your account"
        + _token_note()
    )


def _unknown(repo: str) -> str:
    return f"{constants.ENDPOINT} has no model {repo}, or it is private{_token_note()}"


def _token_note() -> str:
    if huggingface_hub.get_token():
        return "; the token that was given cannot see it"
    return "; no token was given: set HF_TOKEN, or log in with `hf auth login`"
