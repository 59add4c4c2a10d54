"""Llama 3: a JSON object that is the whole message or stands behind `<|python_tag|>`, and
`<function=name>{...}</function>`; built-in tools are called as `name.call(key="value")`.
"""

from engines.parsers.formats import Hints, Reading, ToolFormat
from engines.parsers.python_text import call, parsed, read_brackets
from engines.parsers.readers.json_calls import declared_json_calls, json_calls, whole_message
from engines.parsers.readers.python_calls import python_calls, write
from engines.parsers.readers.tagged import FUNCTION, read_function
from engines.parsers.source import NAME, EndOfText, NotACall, Read

PYTHON_TAG = "<|python_tag|>"
ENDS = ("<|eom_id|>", "<|eot_id|>")


def read_python_tag(reading: Reading) -> Read[None]:
    """Behind `<|python_tag|>`: JSON, a list of calls in Python syntax, or one built-in tool."""
    source = reading.source
    first = yield from source.space()
    if first == "{":
        yield from json_calls(reading)
    elif first == "[":
        yield from python_calls(reading)
    else:
        yield from _read_builtin(reading)


def _read_builtin(reading: Reading) -> Read[None]:
    source = reading.source
    name = yield from source.run(NAME)
    if not name.endswith(".call") or (yield from source.peek()) != "(":
        raise EndOfText if source.at_end() else NotACall
    text = yield from read_brackets(source)
    _, given = parsed(f"_{text}", lambda whole: [call(whole)])[0]
    write(reading, [(name.removesuffix(".call"), given)])


FORMAT = ToolFormat(
    names=("llama", "llama3", "llama3_json"),
    openers={PYTHON_TAG: read_python_tag, FUNCTION.body_open: read_function},
    bare={"{": whole_message(declared_json_calls, ENDS)},
    closers=(*ENDS, ";"),
    hints=Hints(
        template=((PYTHON_TAG,), ("<|start_header_id|>", '"parameters"')),
        vocabulary=((PYTHON_TAG, "<|eom_id|>"),),
    ),
)
