"""How each family writes calls when they are forced: a table, and the grammar of one of its rows.

A row is what stands before, between and behind the calls, and the form of one call. It is what the
family's own reader reads back, in the spelling its models were trained on. Where checkpoints of one
family differ, the first row whose text is in the chat template holds, else the last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.parsers.bodies import (
    ANNOTATIONS,
    PYTHON,
    Arguments,
    CannotForce,
    Named,
    Tool,
    json_arguments,
    tagged,
    without,
)
from engines.parsers.json_text import dump
from engines.parsers.lark import End, Lark
from engines.parsers.tools import deepseek

_MOST_NUMBERED = 8
"""Calls in one answer of a family that counts them."""

_NAME = re.compile(r"[\w.\-:/]+")
_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")
_ANY = re.compile(r"(?s:.+)")
_TAG_KEY = re.compile(r"[^<>\"'\n\s](?:[^<>\"'\n]*[^<>\"'\n\s])?")


@dataclass(frozen=True, slots=True)
class Form:
    """One row. A call is `opener`, the tool's name, `middle`, its arguments, `closer`.

    `names` are the names that are read back. `begins` are beginnings by what the prompt ends with,
    "" for any. Without `between` there is never more than one call. `quoted` names stand in JSON;
    `numbered` ones are followed by a colon and the place of the call.
    """

    opener: str
    middle: str
    closer: str
    arguments: Arguments = json_arguments
    begins: tuple[tuple[str, str], ...] = (("", ""),)
    between: str | None = ""
    end: str = ""
    names: re.Pattern[str] = _NAME
    quoted: bool = False
    numbered: bool = False
    shown_by: tuple[str, ...] = ()

    def calls(self, lark: Lark, tools: Sequence[Tool], prompt_tail: str, *, several: bool) -> str:
        """The expression of one call, or of one or more if there may be `several`.

        Raises `CannotForce`.
        """
        parts = [self._parts(lark, tool) for tool in tools]
        between = lark.markup(self.between or "")
        if not several or self.between is None:
            calls = self._call(lark, parts, 0)
        elif self.numbered:
            calls = ""
            for number in reversed(range(_MOST_NUMBERED)):
                more = f"({between} {calls})?" if calls else ""
                calls = lark.rule(f"{self._call(lark, parts, number)} {more}")
        else:
            call = self._call(lark, parts, 0)
            calls = f"{call} ({between} {call})*"
        tail = prompt_tail.rstrip()
        begin = next(begin for end, begin in self.begins if tail.endswith(end))
        return f"{lark.markup(begin)} {calls} {lark.markup(self.end)}"

    def _call(self, lark: Lark, parts: Sequence[tuple[str, str]], number: int) -> str:
        index = lark.plain(f":{number}") if self.numbered else ""
        return lark.either([f"{head} {index} {rest}" for head, rest in parts])

    def _parts(self, lark: Lark, tool: Tool) -> tuple[str, str]:
        """A call up to the name of its tool, and what comes behind that."""
        if not self.names.fullmatch(tool.name):
            raise CannotForce(f"{tool.name!r} is no name that this model's format can spell")
        try:
            arguments = self.arguments(lark, tool)
        except CannotForce as error:
            raise CannotForce(f"the tool {tool.name!r} cannot be called: {error}") from error
        name = lark.plain(dump(tool.name) if self.quoted else tool.name)
        head = f"{lark.markup(self.opener)} {name}"
        return head, lark.rule(f"{lark.markup(self.middle)} {arguments} {lark.markup(self.closer)}")


def _json(arguments: str, opener: str = "", closer: str = "", **options: Any) -> Form:
    """A JSON object with the name and, under the key `arguments`, the arguments."""
    return Form(
        opener=opener + '{"name": ',
        middle=f', "{arguments}": ',
        closer="}" + closer,
        names=_ANY,
        quoted=True,
        **options,
    )


def _json_list(begin: str, end: str, shown_by: tuple[str, ...] = ()) -> Form:
    return _json(
        "arguments", begins=(("", begin + "["),), between=", ", end="]" + end, shown_by=shown_by
    )


_FUNCTION_TAGS = (
    "</parameter>", "<parameter=", "</function>", "<function=", "<tool_call>", "</tool_call>",
)  # fmt: skip
_INVOKE_TAGS = (
    "</parameter>", "<parameter name=", "</invoke>", "<invoke name=",
    "<minimax:tool_call>", "</minimax:tool_call>",
)  # fmt: skip
_ARG_TAGS = ("</arg_value>", "<arg_key>", "<tool_call>", "</tool_call>")
_GEMMA_QUOTE = '<|"|>'
_FROM_ASSISTANT, _RECIPIENT = "<|from|>assistant", "<|recipient|>"

_HERMES = _json("arguments", "<tool_call>\n", "\n</tool_call>", between="\n")
_CODER = Form(
    opener="<tool_call>\n<function=",
    middle=">\n",
    closer="</function>\n</tool_call>",
    arguments=Named(
        key=("<parameter=", ">\n"),
        keys=_TAG_KEY,
        values=tagged(End("</parameter>", "\n", "\n"), _FUNCTION_TAGS),
    ),
    between="\n",
)
_INVOKE = Form(
    opener='<invoke name="',
    middle='">\n',
    closer="</invoke>",
    arguments=Named(
        key=('<parameter name="', '">'),
        keys=_TAG_KEY,
        values=tagged(End("</parameter>", "", "\n"), _INVOKE_TAGS, trimmed=True),
    ),
    begins=(("", "<minimax:tool_call>\n"),),
    between="\n",
    end="\n</minimax:tool_call>",
)


def _arg_keys(line: str, *shown_by: str) -> Form:
    """GLM's pairs of key and value, each tag followed by `line`."""
    return Form(
        opener="<tool_call>",
        middle=line,
        closer="</tool_call>",
        arguments=Named(
            key=("<arg_key>", f"</arg_key>{line}<arg_value>"),
            keys=_TAG_KEY,
            values=tagged(End("</arg_value>", "", line), _ARG_TAGS),
        ),
        between=line,
        shown_by=shown_by,
    )


def _deepseek(opener: str, middle: str, closer: str, *shown_by: str) -> Form:
    """`opener`, `middle` and `closer` are what stands around name and arguments in a call."""
    return Form(
        opener=deepseek.token("tool call begin") + opener,
        middle=middle,
        closer=closer + deepseek.token("tool call end"),
        begins=(("", deepseek.token("tool calls begin")),),
        between="",
        end=deepseek.token("tool calls end"),
        shown_by=shown_by,
    )


def _python(begin: str, end: str, *shown_by: str) -> Form:
    return Form(
        opener="",
        middle="(",
        closer=")",
        arguments=Named(("", "="), re.compile(r"[^\W\d]\w*"), PYTHON, between=", "),
        begins=(("", begin + "["),),
        between=", ",
        end="]" + end,
        names=_IDENTIFIER,
        shown_by=shown_by,
    )


_SEPARATOR = deepseek.token("tool sep")
_DEEPSEEK_V3 = (f"function{_SEPARATOR}", "\n```json\n", "\n```")
_DEEPSEEK_V31 = _deepseek("", _SEPARATOR, "")
_GLM = (_arg_keys("\n", "</arg_key>\n", r"</arg_key>\n"), _arg_keys(""))

ROWS: Mapping[str, tuple[Form, ...]] = {
    "auto": (_HERMES,),
    "hermes": (_HERMES,),
    "qwen": (_HERMES,),
    "qwen3_coder": (_CODER,),
    "step3p5": (_CODER,),
    "nemotron": (_json_list("<TOOLCALL>", "</TOOLCALL>", ("<TOOLCALL>",)), _CODER),
    "mistral": (
        Form("[TOOL_CALLS]", "[ARGS]", "", shown_by=("[ARGS]",)),
        _json_list("[TOOL_CALLS]", ""),
    ),
    "llama": (_json("parameters", between=None),),
    "pythonic": (
        _python(
            "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call_start|>", "<|tool_list_start|>"
        ),
        _python("", ""),
    ),
    "deepseek_v3": (
        _deepseek(*_DEEPSEEK_V3, "```json"),
        _deepseek("", _SEPARATOR, "", _SEPARATOR),
        _deepseek(*_DEEPSEEK_V3),
    ),
    "deepseek_v31": (_DEEPSEEK_V31,),
    "kimi_k2": (
        Form(
            opener="<|tool_call_begin|>functions.",
            middle="<|tool_call_argument_begin|>",
            closer="<|tool_call_end|>",
            begins=(("", "<|tool_calls_section_begin|>"),),
            end="<|tool_calls_section_end|>",
            numbered=True,
        ),
    ),
    "granite": (
        _json(
            "arguments", "<tool_call>\n", "\n</tool_call>", between="\n", shown_by=("</tool_call>",)
        ),
        _json_list("<tool_call>", "", ("<tool_call>",)),
        _json_list("<|tool_call|>", ""),
    ),
    "xlam": (_json_list("", ""),),
    "functionary": (
        Form(
            opener="<function=",
            middle=">",
            closer="</function>",
            shown_by=("<function=",),
        ),
        Form(
            opener="",
            middle="\n<|content|>",
            closer="",
            begins=(
                (_RECIPIENT, ""),
                (_FROM_ASSISTANT, "\n" + _RECIPIENT),
                ("", f"{_FROM_ASSISTANT}\n{_RECIPIENT}"),
            ),
            between=f"\n{_FROM_ASSISTANT}\n{_RECIPIENT}",
        ),
    ),
    "functionary_v3_2": (Form("", "\n", "", begins=((">>>", ""), ("", ">>>")), between=">>>"),),
    "glm4": _GLM,
    "poolside_v1": _GLM,
    "minimax_m2": (_INVOKE,),
    "gemma4": (
        Form(
            opener="<|tool_call>call:",
            middle="{",
            closer="}<tool_call|>",
            arguments=Named(
                key=("", ":"),
                keys=re.compile(r"[^\s:,{}\[\]<\"]+"),
                values=tagged(End(_GEMMA_QUOTE), (), opener=_GEMMA_QUOTE),
                between=",",
            ),
        ),
    ),
    "harmony": (
        Form(
            opener="<|channel|>commentary to=functions.",
            middle=" <|constrain|>json<|message|>",
            closer="",
            between=None,
        ),
    ),
}
"""By the first name of the family."""


def form_of(family: str, template: str) -> Form | None:
    """The row of `family` that `template` shows, None for a family that has none."""
    forms = ROWS.get(family, ())
    shown = (form for form in forms if any(text in template for text in form.shown_by))
    return next(shown, forms[-1] if forms else None)


def tools_of(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """The tools of a request, in the OpenAI form or as the bare function."""
    functions = [tool.get("function") or tool for tool in tools]
    return [
        Tool(each["name"], without(each.get("parameters") or {}, ANNOTATIONS)) for each in functions
    ]
