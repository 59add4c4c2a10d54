"""DeepSeek R1: as Qwen 3, but the opening tag may be missing."""

from engines.parsers.formats import Hints, ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS
from engines.parsers.tools.deepseek import token

FORMAT = ReasoningFormat(
    names=("deepseek_r1",),
    tags=TAGS,
    implicit=True,
    hints=Hints(template=((token("Assistant"), "</think>"),)),
)
