"""gpt-oss: the channel `analysis`; `channels` reads the messages."""

from engines.parsers.formats import ReasoningFormat
from engines.parsers.tools import harmony

FORMAT = ReasoningFormat(names=("harmony", "gpt_oss"), channels=True, hints=harmony.FORMAT.hints)
