"""Step 3.5: `<think>` tags, the first of which the template opens."""

from engines.parsers.formats import ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS

FORMAT = ReasoningFormat(names=("step3p5",), tags=TAGS)
