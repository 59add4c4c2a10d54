"""`python -m tests.bench [PART...]`: every figure the product promises, in one run on one machine.

Ratios and costs, not speeds: they are what carries over from one machine to another. Exit code 1
when a bound is broken. Let nothing else run meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.bench import (
    against_mlx_lm,
    constraints,
    engine_cpu,
    gap,
    gateway_cpu,
    prompt_cache,
    startup,
    swap,
)

PARTS = {
    "startup": startup.lines,
    "gateway": gateway_cpu.lines,
    "engine": engine_cpu.lines,
    "constraints": constraints.lines,
    "swap": swap.lines,
    "gap": gap.lines,
    "prompt_cache": prompt_cache.lines,
    "mlx_lm": against_mlx_lm.lines,
}


def main(names: list[str]) -> int:
    broken = 0
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for line in PARTS[name](Path(folder)):
                print(line, flush=True)
                broken += not line.holds
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
