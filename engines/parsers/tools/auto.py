"""For a model of which nothing tells the family: every format whose marker is unmistakable."""

from engines.parsers.formats import Reading, ToolFormat
from engines.parsers.readers.arg_keys import read_arg_keys
from engines.parsers.source import Read
from engines.parsers.tools import (
    deepseek_v3,
    gemma4,
    granite,
    hermes,
    kimi_k2,
    llama,
    minimax_m2,
    mistral,
    nemotron,
    pythonic,
    qwen,
)

_TOOL_CALL = "<tool_call>"
_FAMILIES = (
    deepseek_v3.FORMAT, gemma4.FORMAT, granite.FORMAT, kimi_k2.FORMAT, llama.FORMAT,
    minimax_m2.FORMAT, mistral.FORMAT, nemotron.FORMAT, pythonic.FORMAT, qwen.FORMAT,
)  # fmt: skip


def read_tool_call(reading: Reading) -> Read[None]:
    """Behind `<tool_call>`, which families fill in three ways: JSON, XML, or as GLM does."""
    if (yield from reading.source.space()) in ("{", "["):
        yield from hermes.read_tool_call(reading)
        return
    start = reading.source.pos
    if (yield from reading.source.accept("<function=")):
        reading.source.pos = start
        yield from hermes.read_tool_call(reading)
    else:
        yield from read_arg_keys(reading)


FORMAT = ToolFormat(
    names=("auto",),
    openers={
        **{marker: reader for each in _FAMILIES for marker, reader in each.openers.items()},
        _TOOL_CALL: read_tool_call,
    },
    bare=pythonic.FORMAT.bare,
    closers=tuple(dict.fromkeys(closer for each in _FAMILIES for closer in each.closers)),
)
