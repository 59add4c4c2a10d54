"""Poolside Laguna: the format of GLM 4."""

from engines.parsers.formats import ToolFormat
from engines.parsers.readers.arg_keys import TAGS
from engines.parsers.tools.glm4 import OPENERS

FORMAT = ToolFormat(names=("poolside_v1",), openers=OPENERS, closers=(TAGS.wrapper_close,))
