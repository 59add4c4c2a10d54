"""Granite: a JSON list behind `<|tool_call|>` (3.0) or `<tool_call>` (3.1), an object in tags (4),
and `<function_call>` of the function-calling model.
"""

from engines.parsers.formats import Hints, ToolFormat
from engines.parsers.readers.json_calls import json_calls

FORMAT = ToolFormat(
    names=("granite", "granite3", "granite4"),
    openers={
        "<|tool_call|>": json_calls,
        "<tool_call>": json_calls,
        "<function_call>": json_calls,
    },
    closers=("</tool_call>", "</function_call>", "<|end_of_text|>"),
    hints=Hints(template=(("<|tool_call|>",), ("<|start_of_role|>", "<tool_call>"))),
)
