"""What verbs do before they ask: addresses, keys, times; and what they print."""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import exits, parse, parser
from gateway.cli.client import CliError, Gateway, address, guarded, key
from gateway.cli.completion import SCRIPTS, words
from gateway.cli.screen import Bar, coloured, gib, plain, seconds
from gateway.cli.steer import duration_s


def test_the_address_comes_from_the_flag_the_variable_or_the_run_directory(tmp_path: Path) -> None:
    environ = {"MLX_GATEWAY_STATE_DIR": str(tmp_path)}
    with pytest.raises(CliError, match="no gateway runs here") as error:
        address(None, environ)
    assert error.value.code == exits.UNREACHABLE
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "address").write_text("http://127.0.0.1:1\n")
    assert address(None, environ) == "http://127.0.0.1:1"
    environ["MLX_GATEWAY_URL"] = "http://127.0.0.1:2"
    assert address(None, environ) == "http://127.0.0.1:2"
    assert address("http://127.0.0.1:3", environ) == "http://127.0.0.1:3"


def test_a_key_comes_from_a_variable_or_a_private_file(tmp_path: Path) -> None:
    assert key({}) is None
    assert key({"MLX_GATEWAY_KEY": "k1"}) == "k1"
    file = tmp_path / "key"
    environ = {"MLX_GATEWAY_KEY_FILE": str(file)}
    with pytest.raises(CliError, match="cannot be read"):
        key(environ)
    file.write_text("k2\n")
    file.chmod(0o644)
    with pytest.raises(CliError, match=r"can be read by others; run `chmod 600"):
        key(environ)
    file.chmod(0o600)
    assert key(environ) == "k2"


@pytest.mark.parametrize(
    ("text", "found"), [("90", 90), ("30s", 30), ("20m", 1200), ("1.5h", 5400), (" 1d ", 86400)]
)
def test_times(text: str, found: float) -> None:
    assert duration_s(text) == found


@pytest.mark.parametrize("text", ["", "0", "-5s", "2w", "h", "1h30m"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(CliError, match="is no time") as error:
        duration_s(text)
    assert error.value.code == exits.USAGE


def test_a_failed_verb_tells_why_and_has_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise CliError("it is not so", exits.NOT_FOUND)

    def interrupt(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert guarded(fail)(argparse.Namespace()) == exits.NOT_FOUND
    assert capsys.readouterr().err == "mlx-gateway: it is not so\n"
    assert guarded(interrupt)(argparse.Namespace()) == exits.INTERRUPTED


# --- printing -------------------------------------------------------------------------------------


@given(st.text())
def test_no_text_steers_the_terminal(text: str) -> None:
    assert not any(
        (ord(each) < 32 and each not in "\t\n") or 127 <= ord(each) < 160 for each in plain(text)
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured("x", "31", io.StringIO()) == "x"
    assert coloured("x", "31", Terminal()) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("x", "31", Terminal()) == "x"


def test_a_bar_is_one_line_on_a_terminal_and_few_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        bar = Bar("load m", stream)
        for done in range(101):
            bar.show(done, 100)
        bar.end()
    assert terminal.getvalue().count("\n") == 1
    assert "100%" in terminal.getvalue()
    assert file.getvalue().count("\n") == 11
    assert "\x1b" not in file.getvalue()


@pytest.mark.parametrize(
    ("value", "told"), [(None, "-"), (5.4, "5 s"), (65, "1 min 5 s"), (7500, "2 h 5 min")]
)
def test_durations(value: float | None, told: str) -> None:
    assert seconds(value) == told


def test_sizes() -> None:
    assert (gib(None), gib(2**29)) == ("-", "0.50 GiB")


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "some", "never"),
    [
        ([""], {"serve", "ps", "service", "--help"}, {"install"}),
        (["serv"], {"serve", "service"}, {"ps"}),
        (["service", ""], {"install", "logs"}, {"ps"}),
        (["service", "install", "--d"], {"--dry-run"}, {"--config"}),
        (["load", "--no"], {"--no-wait"}, {"--url"}),
    ],
)
def test_words_that_can_come_next(
    typed: list[str],
    some: set[str],
    never: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLX_GATEWAY_STATE_DIR", str(tmp_path))  # where no gateway runs
    found = set(words(parser(), typed))
    assert some <= found
    assert not never & found


def test_every_verb_has_a_text() -> None:
    for word in words(parser(), [""]):
        if not word.startswith("-"):
            with pytest.raises(SystemExit) as ended:
                parse([word, "--help"])
            assert ended.value.code == 0


def test_names_are_nothing_that_the_shell_runs(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    lines = [
        "complete() { :; }",
        SCRIPTS["bash"],
        """mlx-gateway() { printf '%s\\n' 'm$(touch ran)' 'two words'; }""",
        "COMP_WORDS=(mlx-gateway load m) COMP_CWORD=2",
        "_mlx_gateway",
        """printf '%s\\n' "${COMPREPLY[@]}\"""",
    ]
    done = subprocess.run(
        [bash, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["m$(touch ran)", "two words"]
    assert list(tmp_path.iterdir()) == []


# --- a gateway that is none -----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://host:port", "http://[::1", "host:99999"])
def test_an_address_that_is_none_is_said_so(url: str) -> None:
    with pytest.raises(CliError, match="is no address of a gateway") as error:
        Gateway(url)
    assert error.value.code == exits.USAGE


def answering(server: socket.socket, answer: bytes) -> threading.Thread:
    """Gives this answer to one request, and closes the connection."""

    def run() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    body = b'{"error": {"message": "no \\u001b[2J", "code": "busy"}}'
    head = b"HTTP/1.1 503 X\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = answering(server, head + body)
        with pytest.raises(CliError) as error:
            Gateway(f"127.0.0.1:{server.getsockname()[1]}").get("/v1/status")
        thread.join(30)
    assert str(error.value) == "no \N{REPLACEMENT CHARACTER}[2J (busy)"


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_that_is_cut_off_is_a_failure_with_a_code(status: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        cut = b"HTTP/1.1 %d X\r\ncontent-length: 99\r\n\r\n{" % status
        thread = answering(server, cut)
        gateway = Gateway(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(CliError) as error:
            gateway.get("/v1/status")
        thread.join(30)
    assert error.value.code == {200: exits.UNREACHABLE, 503: exits.BUSY}[status]
