"""Steps of an installation, as data, and the one who carries them out or takes them back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

COMMAND_S = 60.0
POLL_S = 0.2
FILE_MODE = 0o644
FOLDER_MODE = 0o700


class ServiceError(Exception):
    """The service cannot be changed; the message says why, and what was taken back."""


@dataclass(frozen=True, slots=True)
class Write:
    path: Path
    content: bytes


@dataclass(frozen=True, slots=True)
class Remove:
    path: Path


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path


@dataclass(frozen=True, slots=True)
class Run:
    """`undo` runs when a later step fails. With `may_fail` its exit code does not matter."""

    argv: tuple[str, ...]
    undo: tuple[str, ...] = ()
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """Waits until the command fails, because what it asks for is not there any more."""

    argv: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class IfFails:
    """Does nothing; `argv` runs when a later step fails, once that is undone."""

    argv: tuple[str, ...]


Step = Write | Remove | Folder | Run | Gone | IfFails


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it said on either output."""

    code: int
    text: str = ""


Runner = Callable[[Sequence[str]], Said]


def run_command(argv: Sequence[str]) -> Said:
    """Runs one command of the system; one that is missing or hangs is a failure like any other."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
    except FileNotFoundError:
        return Said(127, f"{argv[0]}: there is no such program")
    except OSError as error:
        return Said(126, f"{argv[0]} cannot be run: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return Said(124, f"{argv[0]} took longer than {COMMAND_S:g} s")
    return Said(done.returncode, done.stdout.strip())


def carry_out(steps: Sequence[Step], run: Runner) -> None:
    """Every step in order. Raises `ServiceError` with everything undone that was done."""
    with contextlib.ExitStack() as undo:
        for step in steps:
            match step:
                case Folder(path):
                    _make(path)
                case Write(path, content):
                    undo.callback(_restore, path, _content(path))
                    _write(path, content)
                case Remove(path):
                    undo.callback(_restore, path, _content(path))
                    _restore(path, None)
                case Run():
                    _run(step, run)
                    if step.undo:
                        undo.callback(run, step.undo)
                case Gone():
                    _wait(step, run)
                case IfFails(argv):
                    undo.callback(run, argv)
        undo.pop_all()


def told(steps: Sequence[Step]) -> list[str]:
    """What `carry_out` would do, a line each."""
    lines = []
    for step in steps:
        match step:
            case Folder(path):
                lines.append(f"make {path}")
            case Write(path):
                lines.append(f"write {path}")
            case Remove(path):
                lines.append(f"remove {path}")
            case Run(argv):
                lines.append("run " + " ".join(argv))
            case Gone():
                lines.append("wait until it has ended")
            case IfFails():
                pass  # nothing of it is seen where all goes well
    return lines


def _run(step: Run, run: Runner) -> None:
    said = run(step.argv)
    if said.code != 0 and not step.may_fail:
        command = " ".join(step.argv)
        raise ServiceError(
            f"`{command}` failed with {said.code}: {said.text or 'it said nothing'}; "
            "everything is as it was before"
        )


def _wait(step: Gone, run: Runner) -> None:
    until = time.monotonic() + step.timeout_s
    while run(step.argv).code == 0:
        if time.monotonic() >= until:
            raise ServiceError(
                f"the service has not ended within {step.timeout_s:g} s; look into its log, and "
                "try again"
            )
        time.sleep(POLL_S)


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceError(f"{path} cannot be made: {error.strerror or error}") from error


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever reads it meanwhile."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.chmod(FILE_MODE)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ServiceError(f"{path} cannot be written: {error.strerror or error}") from error


def _restore(path: Path, content: bytes | None) -> None:
    if content is not None:
        _write(path, content)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ServiceError(f"{path} cannot be removed: {error.strerror or error}") from error
