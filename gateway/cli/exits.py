"""Exit codes of every verb that asks a running gateway, for scripts."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""It was tried and did not work; or, for verbs that look, something is wrong."""
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
"""The key is missing, wrong, or not allowed to do this."""
NOT_FOUND = 5
BUSY = 6
"""Refused for now; trying again later may work."""
INTERRUPTED = 130

BY_STATUS = {400: FAILED, 401: REFUSED, 403: REFUSED, 404: NOT_FOUND, 429: BUSY, 503: BUSY}
