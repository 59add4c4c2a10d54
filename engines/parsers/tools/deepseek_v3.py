"""DeepSeek V3 and R1; see `deepseek`."""

from engines.parsers.formats import ToolFormat
from engines.parsers.tools import deepseek

FORMAT = ToolFormat(
    names=("deepseek_v3", "deepseek", "deepseek_r1"),
    openers=deepseek.OPENERS,
    closers=deepseek.CLOSERS,
    hints=deepseek.HINTS,
)
