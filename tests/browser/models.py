"""The models of the gateway that the dashboard is tested with."""

from __future__ import annotations

from tests.harness.daemon import scripted

BUDGET_GB = 10
FORGED = "<img src=x onerror=\"document.title='forged'\">"
ANSWER = f"<think>Let me see.</think>Bold words: {FORGED} and <b>no more</b>."

MODELS = (
    scripted("writer", size_gb=6, load_s=0.6, deltas=40, kv_gb_per_1k=0.1, kv_memory_gb=1),
    scripted("rival", size_gb=6, load_s=0.6, deltas=["Hello ", "from ", "the ", "rival."]),
    scripted(
        "thinker",
        size_gb=0.5,
        description=f"{FORGED} thinks first",
        deltas=ANSWER,
        reasoning_parser="qwen3",
        tool_parser="hermes",
    ),
    scripted("slow", size_gb=0.5, tokens_per_s=5, deltas=400),
    scripted("seer", size_gb=0.5, kind="vision", deltas="A picture."),
    scripted("vectors", size_gb=0.2, kind="embedding", vector_dim=64),
    scripted("ranker", size_gb=0.2, kind="rerank"),
    scripted("listener", size_gb=0.2, kind="transcription", deltas="What was said."),
    scripted("speaker", size_gb=0.2, kind="speech"),
    scripted(FORGED, size_gb=0.2, deltas="Hello."),
    scripted("fixed", size_gb=0.2, pin=True),
    scripted("broken", size_gb=0.2, fail_loads=1000),
)
