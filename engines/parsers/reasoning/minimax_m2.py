"""MiniMax M2: `<think>` tags, the first of which the template opens."""

from engines.parsers.formats import Hints, ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS

FORMAT = ReasoningFormat(
    names=("minimax_m2",), tags=TAGS, hints=Hints(template=(("<minimax:tool_call>", "think>"),))
)
