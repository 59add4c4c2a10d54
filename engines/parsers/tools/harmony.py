"""gpt-oss: messages with headers; `channels` reads them."""

from engines.parsers.formats import Hints, ToolFormat

FORMAT = ToolFormat(
    names=("harmony", "gpt-oss", "gpt_oss"),
    channels=True,
    hints=Hints(
        template=(("<|channel|>", "<|message|>"),),
        vocabulary=(("<|channel|>", "<|message|>", "<|constrain|>"),),
    ),
)
