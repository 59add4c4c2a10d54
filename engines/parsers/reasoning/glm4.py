"""GLM 4.5 to 4.7: `<think>` tags."""

from engines.parsers.formats import Hints, ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS

FORMAT = ReasoningFormat(names=("glm4",), tags=TAGS, hints=Hints(template=(("[gMASK]", "think>"),)))
