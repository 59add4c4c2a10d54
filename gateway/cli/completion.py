"""`mlx-gateway completion`: words for the shell, from the parser itself.

The scripts ask `mlx-gateway completion words -- WORD...` at every press of the key, so they never
grow old. Names of models come from the gateway that runs, if one answers soon.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

NAMES_S = 0.3

_BASH = """\
_mlx_gateway() {
    local IFS=$'\\n'
    COMPREPLY=($(mlx-gateway completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _mlx_gateway mlx-gateway
"""
_ZSH = """\
#compdef mlx-gateway
_mlx_gateway() {
    local -a found
    found=("${(@f)$(mlx-gateway completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found
    _files
}
compdef _mlx_gateway mlx-gateway
"""
_FISH = """\
function __mlx_gateway
    set -l words (commandline -opc) (commandline -ct)
    mlx-gateway completion words -- $words[2..-1] 2>/dev/null
end
complete -c mlx-gateway -a '(__mlx_gateway)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "completion",
        help="completion of commands in your shell",
        description='bash: eval "$(mlx-gateway completion bash)" in ~/.bashrc; zsh: the same in '
        "~/.zshrc after compinit; fish: mlx-gateway completion fish > "
        "~/.config/fish/completions/mlx-gateway.fish",
    )
    shells = parser.add_subparsers(required=True, metavar="SHELL")
    for shell, script in SCRIPTS.items():
        shells.add_parser(shell).set_defaults(run=_printer(script))
    words = shells.add_parser("words", help="what can come next; for the scripts")
    words.add_argument("words", nargs="*")
    words.set_defaults(run=run_words)


def _printer(script: str) -> object:
    def run(args: argparse.Namespace) -> int:
        print(script, end="")  # noqa: T201
        return 0

    return run


def run_words(args: argparse.Namespace) -> int:
    from gateway.cli import parser

    for word in sorted(set(words(parser(), args.words))):
        print(word)  # noqa: T201
    return 0


def words(parser: argparse.ArgumentParser, typed: Sequence[str]) -> Iterator[str]:
    """What can come in place of the last of `typed`, which may be empty."""
    *before, last = typed or [""]
    for word in before:
        verbs = _verbs(parser)
        if word in verbs:
            parser = verbs[word]
    yield from (name for name in _verbs(parser) if name.startswith(last))
    for action in parser._actions:
        yield from (option for option in action.option_strings if option.startswith(last))
        if action.dest == "model" and not action.option_strings:
            yield from (name for name in model_names() if name.startswith(last))


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The next words that have a parser of their own."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # argparse has no public way to look at what it was told
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def model_names() -> list[str]:
    """Of the gateway that runs here; none where it does not answer soon."""
    import os

    from gateway.cli.client import CliError, Gateway, address, key

    try:
        gateway = Gateway(address(None, os.environ), key(os.environ))
        models = gateway.ask("GET", "/v1/models", timeout_s=NAMES_S)["data"]
        return [name for model in models for name in (model["id"], *model["aliases"])]
    except (CliError, KeyError, TypeError):
        return []
