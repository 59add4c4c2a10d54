"""Calls in Python syntax, bare or behind a marker: Llama 4 and LFM2."""

from engines.parsers.formats import Hints, ToolFormat
from engines.parsers.readers.json_calls import declared_json_calls, whole_message
from engines.parsers.readers.python_calls import declared_python_calls
from engines.parsers.tools.llama import ENDS, PYTHON_TAG, read_python_tag

_ENDS = (*ENDS, "<|eot|>", "<|eom|>", "<|python_end|>")

FORMAT = ToolFormat(
    names=("pythonic", "llama4"),
    openers={
        "<|python_start|>": read_python_tag,
        "<|tool_call_start|>": read_python_tag,
        PYTHON_TAG: read_python_tag,
    },
    bare={
        "[": whole_message(declared_python_calls, _ENDS),
        "{": whole_message(declared_json_calls, _ENDS),
    },
    closers=("<|tool_call_end|>", *_ENDS),
    hints=Hints(
        template=(("<|python_start|>",), ("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        vocabulary=(
            ("<|python_start|>", "<|python_end|>"),
            ("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
    ),
)
