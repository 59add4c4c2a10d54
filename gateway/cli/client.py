"""A running gateway, as verbs of the command line see it: over HTTP, and with plain blocking calls.

The address comes from `--url`, `MLX_GATEWAY_URL`, or the run directory's address file; the key from
`MLX_GATEWAY_KEY`, or the file that `MLX_GATEWAY_KEY_FILE` names. The standard library's client is
enough here and starts fastest.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.cli import exits
from gateway.cli.screen import plain

TIMEOUT_S = 30.0
LOAD_S = 3600.0
MAX_KEY_BYTES = 4096


class CliError(Exception):
    """What the person is told, and the exit code."""

    def __init__(self, message: str, code: int = exits.FAILED) -> None:
        super().__init__(message)
        self.code = code


def add_connection(parser: argparse.ArgumentParser, *, reads: bool = True) -> None:
    """The flags of every verb that asks a gateway."""
    parser.add_argument(
        "--url", help="the gateway (default: MLX_GATEWAY_URL, then the one that runs here)"
    )
    if reads:
        parser.add_argument("--json", action="store_true", help="print JSON for programs")


def guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A verb whose `CliError` is told on stderr, and whose reader may go away."""

    def guard(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except CliError as error:
            sys.stderr.write(f"mlx-gateway: {error}\n")
            return error.code
        except KeyboardInterrupt:
            return exits.INTERRUPTED
        except BrokenPipeError:
            # `| head` has what it wanted; another write at exit would complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return exits.DONE

    return guard


def connect(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Gateway:
    """The gateway that the arguments name. Raises `CliError`."""
    return Gateway(address(args.url, environ), key(environ))


def address(flag: str | None, environ: Mapping[str, str]) -> str:
    """Raises `CliError` where nothing says where a gateway is."""
    from gateway.registry.places import places

    if given := flag or environ.get("MLX_GATEWAY_URL"):
        return given
    file = places(environ).address
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        raise CliError(
            "no gateway runs here (there is no address file); start one with `mlx-gateway serve`,"
            " or name another with --url",
            exits.UNREACHABLE,
        ) from None


def key(environ: Mapping[str, str]) -> str | None:
    """Raises `CliError` for a file that others can read."""
    if given := environ.get("MLX_GATEWAY_KEY"):
        return given
    named = environ.get("MLX_GATEWAY_KEY_FILE")
    if not named:
        return None
    try:
        with Path(named).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_KEY_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"the key in {named} cannot be read: {error}", exits.USAGE) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CliError(f"{named} can be read by others; run `chmod 600 {named}`", exits.USAGE)
    return text


class Gateway:
    """Requests to one gateway, each over a connection of its own. Raises `CliError`."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._port = parts.port
        except ValueError as error:
            raise CliError(f"{url!r} is no address of a gateway: {error}", exits.USAGE) from error
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname or "127.0.0.1"
        self._tls = parts.scheme == "https"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, path: str) -> Any:
        """The JSON at a path. Raises `CliError`."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> Any:
        """The JSON that answers, whatever its success status. Raises `CliError`."""
        with self._open(method, path, body, timeout_s) as response:
            try:
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise CliError(f"the gateway has gone: {error}", exits.UNREACHABLE) from error
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise CliError(
                f"{self.url}{path} does not answer with JSON: is it a gateway?"
            ) from error

    def events(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = None
    ) -> Iterator[str]:
        """The data of each server-sent event, as it comes. Raises `CliError`."""
        with self._open(method, path, body, timeout_s) as response:
            try:
                for line in response:
                    if line.startswith(b"data:"):
                        yield line[5:].decode(errors="replace").strip()
            except (OSError, http.client.HTTPException) as error:
                raise CliError(f"the gateway has gone: {error}", exits.UNREACHABLE) from error

    @contextmanager
    def _open(
        self, method: str, path: str, body: Any, timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "content-type": "application/json"}
        with closing(self._connection(timeout_s)) as connection:
            try:
                connection.request(method, path, body=data, headers=headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise CliError(
                    f"nothing answers at {self.url}: {error}", exits.UNREACHABLE
                ) from error
            if response.status >= 400:
                raise _refused(response)
            yield response

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=context
        )


def _refused(response: http.client.HTTPResponse) -> CliError:
    code = exits.BY_STATUS.get(response.status, exits.FAILED)
    try:
        error = json.loads(response.read())["error"]
        message = plain(f"{error['message']} ({error.get('code') or response.status})")
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        message = f"the gateway answers {response.status}"
    if response.status == 401:
        message += "; give a key in MLX_GATEWAY_KEY"
    return CliError(message, code)
