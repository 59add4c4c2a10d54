"""Answers that keep to a grammar: formats and forced tool calls, row by row in the running batch.

`plan` says what a request's answer has to look like, as grammars; `compiler` makes llguidance
matchers of them and refuses what cannot be kept; `constraint` is the processor that lets one row
draw only what its matcher allows.
"""

from engines.text.constrain.constraint import Constraint
from engines.text.constrain.plan import Constrainer

__all__ = ["Constrainer", "Constraint"]
