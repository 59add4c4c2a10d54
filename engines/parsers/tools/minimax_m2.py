"""MiniMax M2: `<invoke name="...">` with tagged parameters, several in one outer tag."""

from engines.parsers.formats import Hints, ToolFormat
from engines.parsers.readers import wrapper
from engines.parsers.readers.tagged import INVOKE, read_invoke

FORMAT = ToolFormat(
    names=("minimax_m2", "minimax"),
    openers={
        INVOKE.wrapper_open: wrapper.before(INVOKE.body_open),
        INVOKE.body_open: read_invoke,
    },
    closers=(INVOKE.wrapper_close,),
    hints=Hints(template=((INVOKE.wrapper_open,),)),
)
