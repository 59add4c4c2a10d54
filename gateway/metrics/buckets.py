"""Upper bounds of histograms in seconds: each spans what its quantity takes on a desktop machine.

Tokens take milliseconds, loads and long prompts minutes. A bucket is one series for each model, so
there are no more of them than a quantile needs.
"""

from __future__ import annotations

REQUEST = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
WAIT = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
INTER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
LOAD = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200)
AGE = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 14_400, 43_200, 86_400, 604_800)
