"""Poolside Laguna: `<think>` tags."""

from engines.parsers.formats import ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS

FORMAT = ReasoningFormat(names=("poolside_v1",), tags=TAGS)
