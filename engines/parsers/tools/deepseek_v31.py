"""DeepSeek V3.1; see `deepseek`."""

from engines.parsers.formats import ToolFormat
from engines.parsers.tools import deepseek

FORMAT = ToolFormat(names=("deepseek_v31",), openers=deepseek.OPENERS, closers=deepseek.CLOSERS)
