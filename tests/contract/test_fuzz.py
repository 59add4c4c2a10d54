"""Whatever is sent, the answer is well formed, in its dialect, and as the document says."""

from __future__ import annotations

from tests.harness.fuzz import withstand

BODIES = 2000


def test_any_body_to_any_route() -> None:
    seen = withstand(BODIES)
    assert seen.total() >= BODIES
    answered = {path for path, status in seen if status == 200}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} <= answered
    refused = {path for path, status in seen if status == 400}
    assert answered & refused
