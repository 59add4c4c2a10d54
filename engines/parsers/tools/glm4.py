"""GLM 4.5 to 4.7: the name of the tool and tagged pairs of key and value."""

from engines.parsers.formats import Hints, ToolFormat
from engines.parsers.readers.arg_keys import TAGS, read_arg_keys

OPENERS = {TAGS.wrapper_open: read_arg_keys}

FORMAT = ToolFormat(
    names=("glm4", "glm47"),
    openers=OPENERS,
    closers=(TAGS.wrapper_close,),
    hints=Hints(template=(("<arg_key>",),)),
)
