"""`mlx-gateway chat`: a conversation with a model in the terminal.

Ctrl-C ends an answer, Ctrl-D the conversation. With `-m`, or with text on standard input, there is
one answer and nothing else on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from gateway.cli import exits
from gateway.cli.client import CliError, Gateway, add_connection, connect, guarded
from gateway.cli.screen import coloured, plain, say

DIM = "2"
MAX_INPUT = 2**22


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser("chat", help="talk to a model")
    parser.add_argument("model")
    parser.add_argument("-m", "--message", help="one question; the answer alone is printed")
    parser.add_argument("-s", "--system", help="a system prompt")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--no-reasoning", action="store_true", help="do not show what it thinks")
    add_connection(parser, reads=False)
    parser.set_defaults(run=guarded(run))


def run(args: argparse.Namespace) -> int:
    talk = _Conversation(connect(args), args)
    if args.message is not None:
        talk.ask(args.message)
        return exits.DONE
    if not sys.stdin.isatty():
        talk.ask(sys.stdin.read(MAX_INPUT))
        return exits.DONE
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  it gives `input` a history and keys
    say(coloured("Ctrl-C ends an answer, Ctrl-D the conversation.", DIM))
    while True:
        try:
            question = input("> ")
        except EOFError:
            say()
            return exits.DONE
        if question.strip():
            try:
                talk.ask(question)
            except CliError as error:
                say(coloured(f"{error}", "31"))


class _Conversation:
    """The messages so far; an answer that was broken off stays as far as it came."""

    def __init__(self, gateway: Gateway, args: argparse.Namespace) -> None:
        self._gateway = gateway
        self._thoughts = not args.no_reasoning
        self._interactive = args.message is None and sys.stdin.isatty()
        self._messages: list[dict[str, Any]] = []
        if args.system:
            self._messages.append({"role": "system", "content": args.system})
        self._body: dict[str, Any] = {"model": args.model, "stream": True}
        for name in ("max_tokens", "temperature"):
            if (value := getattr(args, name)) is not None:
                self._body[name] = value

    def ask(self, question: str) -> None:
        """Prints the answer as it comes. Raises `CliError`, and then the question never was."""
        asked = [*self._messages, {"role": "user", "content": question}]
        body = {**self._body, "messages": asked}
        answer: list[str] = []
        try:
            for data in self._gateway.events("POST", "/v1/chat/completions", body):
                if data == "[DONE]":
                    break
                self._show(json.loads(data), answer)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
        say()
        self._messages = [*asked, {"role": "assistant", "content": "".join(answer)}]

    def _show(self, event: dict[str, Any], answer: list[str]) -> None:
        if failure := event.get("error"):
            raise CliError(plain(f"{failure.get('message')} ({failure.get('code')})"))
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if self._thoughts and (thought := delta.get("reasoning_content")):
                # On stderr, so that what is piped on is the answer alone.
                sys.stderr.write(coloured(plain(thought), DIM, sys.stderr))
                sys.stderr.flush()
            if text := delta.get("content"):
                answer.append(text)
                sys.stdout.write(plain(text))
                sys.stdout.flush()
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                told = f"{function.get('name') or ''}{function.get('arguments') or ''}"
                sys.stdout.write(coloured(plain(told), DIM))
