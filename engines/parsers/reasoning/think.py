"""Any of the tags that models put around their trace."""

from engines.parsers.formats import Hints, ReasoningFormat
from engines.parsers.reasoning.qwen3 import TAGS

_OTHERS = (
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
)

FORMAT = ReasoningFormat(
    names=("think",),
    tags=(*TAGS, *_OTHERS),
    hints=Hints(
        template=tuple((opener,) for opener, _ in _OTHERS if opener != "<thinking>"),
        vocabulary=_OTHERS,
    ),
)
