"""The command line as Markdown, from its parsers: the same on every version of Python. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gateway.cli import parser


def command_line() -> str:
    """A section for each verb, in the order of `--help`."""
    return "\n\n".join(_sections(parser(), "mlx-gateway", ""))


def _sections(made: argparse.ArgumentParser, command: str, summary: str) -> Iterator[str]:
    subparsers = _subparsers(made)
    if subparsers is None:
        yield _section(made, command, summary)
        return
    helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    for name, sub in subparsers.choices.items():
        if name in helps:  # the others are for the shell's completion alone
            yield from _sections(sub, f"{command} {name}", helps[name])


def _subparsers(
    made: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    actions = made._actions
    return next((a for a in actions if isinstance(a, argparse._SubParsersAction)), None)


def _section(made: argparse.ArgumentParser, command: str, summary: str) -> str:
    actions = [action for action in made._actions if action.dest != "help"]
    usage = " ".join([command, *_usages(made, actions)])
    told = made.description or _sentence(summary)
    lines = [f"### {command.removeprefix('mlx-gateway ')}", f"```usage\n{usage}\n```", told]
    if rows := [f"- {_names(a)}{_meaning(a)}" for a in actions if a.help or a.choices]:
        lines.append("\n".join(rows))
    return "\n\n".join(line for line in lines if line)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _usages(made: argparse.ArgumentParser, actions: list[argparse.Action]) -> Iterator[str]:
    """Arguments before options; of options that exclude each other, all at the first one."""
    groups = [group._group_actions for group in made._mutually_exclusive_groups if group.required]
    grouped = {id(action) for group in groups for action in group}
    firsts = {id(group[0]): group for group in groups}
    for action in sorted(actions, key=lambda action: bool(action.option_strings)):
        if group := firsts.get(id(action)):
            yield f"({' | '.join(_usage(one).strip('[]') for one in group)})"
        elif id(action) not in grouped:
            yield _usage(action)


def _usage(action: argparse.Action) -> str:
    value = _value(action)
    shown = f"{action.option_strings[-1]} {value}".strip() if action.option_strings else value
    if action.option_strings:
        return shown if action.required else f"[{shown}]"
    many = " ..." if action.nargs in ("*", "+") else ""
    return f"[{shown}{many}]" if action.nargs in ("*", "?") else f"{shown}{many}"


def _value(action: argparse.Action) -> str:
    if action.option_strings and action.nargs == 0:
        return ""
    name = action.metavar or action.dest
    return name.upper() if isinstance(name, str) else " ".join(name)


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_value(action)}`"
    return ", ".join(f"`{f'{name} {_value(action)}'.strip()}`" for name in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    words = f": {action.help}" if action.help else ""
    if action.choices and action.metavar is None:
        words += f" ({', '.join(map(str, action.choices))})"
    return words
