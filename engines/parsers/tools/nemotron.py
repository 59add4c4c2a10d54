"""Nemotron: version 3 writes as Qwen3-Coder does, earlier ones a JSON list in `<TOOLCALL>` tags."""

from engines.parsers.formats import Hints, ToolFormat
from engines.parsers.readers.json_calls import json_calls
from engines.parsers.tools.qwen3_coder import OPENERS

FORMAT = ToolFormat(
    names=("nemotron", "nemotron3"),
    openers={**OPENERS, "<TOOLCALL>": json_calls},
    closers=("</function>", "</tool_call>", "</TOOLCALL>"),
    hints=Hints(template=(("<TOOLCALL>",),)),
)
