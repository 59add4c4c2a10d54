"""Compressed audio through one ffmpeg process for each stream, without ever blocking the caller.

Owned by the work thread. An `Encoder` is moved along by `pump`, which writes what ffmpeg takes and
reads what it gives; nothing else here waits. The process inherits nothing but its three pipes, ends
at the end of its input, and is killed and reaped by `close`, whatever has happened before.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import time
from typing import IO

CODECS: dict[str, tuple[str, ...]] = {
    "mp3": ("-c:a", "libmp3lame", "-b:a", "96k", "-write_xing", "0", "-id3v2_version", "0",
            "-f", "mp3"),
    "flac": ("-c:a", "flac", "-f", "flac"),
    "opus": ("-c:a", "libopus", "-b:a", "64k", "-page_duration", "100000", "-f", "ogg"),
    "aac": ("-c:a", "aac", "-b:a", "96k", "-f", "adts"),
}  # fmt: skip
"""Codec and container by format. A pipe cannot be sought in, so no header counts the frames."""

STALL_S = 30.0
"""An ffmpeg that has taken and given nothing for so long is stuck."""

_CHUNK_BYTES = 2**16
_REAP_S = 5.0
_LAST_WORDS_BYTES = 2000
_UNWANTED = ("LD_PRELOAD",)


class FfmpegError(Exception):
    """ffmpeg failed; the message says how."""


def find_ffmpeg() -> str | None:
    """The path of the program, None where it is not installed."""
    return shutil.which("ffmpeg")


def environment() -> dict[str, str]:
    """What an ffmpeg may inherit: a preloaded BLAS would only slow it down."""
    return {name: value for name, value in os.environ.items() if name not in _UNWANTED}


class Encoder:
    """16-bit little-endian mono samples at `rate` Hz in, one file of `format` out.

    Raises `FfmpegError` where there is no ffmpeg.
    """

    def __init__(self, format: str, rate: int) -> None:
        program = find_ffmpeg()
        if program is None:
            raise FfmpegError("ffmpeg is not installed")
        command = [program, "-hide_banner", "-loglevel", "error", "-f", "s16le", "-ar", str(rate)]
        command += ["-ac", "1", "-i", "pipe:0", *CODECS[format], "-flush_packets", "1", "pipe:1"]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(), bufsize=0
            )
        except OSError as error:
            raise FfmpegError(f"ffmpeg could not be started: {error}") from error
        self._stdin = _unblocked(self._process.stdin)
        self._stdout = _unblocked(self._process.stdout)
        self._stderr = _unblocked(self._process.stderr)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._waiting = bytearray()
        self._given_all = False
        self._words = b""
        self._moved_at = time.monotonic()
        self.over = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it has taken everything, so that there is room for more."""
        return not self._waiting

    def give(self, samples: bytes) -> None:
        """Queues samples; give more only when it is `idle`, which is what bounds the queue."""
        if not self._waiting and samples:
            self._moved_at = time.monotonic()
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        self._waiting += samples

    def end(self) -> None:
        """Nothing more will be given: what is left comes out of `pump` until it is `over`."""
        self._given_all = True
        if not self._waiting:
            self._moved_at = time.monotonic()
            self._stdin.close()

    def pump(self, wait_s: float = 0.0) -> bytes:
        """Moves what can be moved, waiting up to `wait_s` for the first; returns what came out.

        Raises `FfmpegError` when ffmpeg failed, or did nothing for `STALL_S`.
        """
        came: list[bytes] = []
        wait = wait_s
        while not self.over and (ready := self._selector.select(wait)):
            wait = 0.0
            for key, _ in ready:
                if key.fileobj is self._stdin:
                    self._write()
                elif data := self._read(key.fileobj):  # type: ignore[arg-type]  # one of our pipes
                    came.append(data)
            if not self._selector.get_map():
                self._finish()
        out = b"".join(came)
        pending = bool(self._waiting) or self._given_all
        if pending and not self.over and time.monotonic() > self._moved_at + STALL_S:
            raise FfmpegError(f"ffmpeg has done nothing for {STALL_S:g} s")
        return out

    def close(self) -> None:
        """Ends and reaps the process, if it still runs. May be called again."""
        self.over = True
        self._selector.close()
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        if self._process.returncode is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)

    def _write(self) -> None:
        try:
            taken = os.write(self._stdin.fileno(), self._waiting[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it is going; its last words and its exit code say why
            taken = len(self._waiting)
        del self._waiting[:taken]
        self._moved_at = time.monotonic()
        if not self._waiting:
            self._selector.unregister(self._stdin)
            if self._given_all:
                self._stdin.close()

    def _read(self, pipe: IO[bytes]) -> bytes:
        try:
            data = os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        self._moved_at = time.monotonic()
        if not data:
            self._selector.unregister(pipe)
        if pipe is self._stderr:
            self._words = (self._words + data)[-_LAST_WORDS_BYTES:]
            return b""
        return data

    def _finish(self) -> None:
        """Both of its outputs are closed, so it has ended or is about to."""
        self.over = True
        try:
            code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            raise FfmpegError("ffmpeg does not end") from None
        if code != 0 or not self._given_all:
            said = " ".join(self._words.decode("utf-8", "replace").split())
            raise FfmpegError(f"ffmpeg ended with {code}: {said or 'it did not say why'}")


def _unblocked(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe
