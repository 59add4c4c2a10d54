"""Step 3.5: the format of Qwen3-Coder."""

from engines.parsers.formats import ToolFormat
from engines.parsers.tools.qwen3_coder import OPENERS

FORMAT = ToolFormat(names=("step3p5",), openers=OPENERS, closers=("</function>", "</tool_call>"))
