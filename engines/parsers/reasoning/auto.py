"""For a model of which nothing tells the family: every tag of the other families."""

from engines.parsers.formats import ReasoningFormat
from engines.parsers.reasoning import gemma4, mistral, think

FORMAT = ReasoningFormat(
    names=("auto",), tags=(*think.FORMAT.tags, *mistral.FORMAT.tags, *gemma4.FORMAT.tags)
)
