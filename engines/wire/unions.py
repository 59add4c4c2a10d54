"""The closed vocabulary: which messages there are, by direction and by what they answer."""

from __future__ import annotations

from engines.wire.events import (
    Bytes,
    ChoiceFinished,
    Cleared,
    Counted,
    Detokenized,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    LoadFailed,
    Loading,
    PromptProgress,
    Ready,
    ReasoningDelta,
    Scores,
    Segment,
    Started,
    TextDelta,
    Tokenized,
    ToolCallArguments,
    ToolCallStart,
    Transcript,
    TurnOver,
    WantTurn,
)
from engines.wire.requests import (
    Cancel,
    ClearCache,
    CountTokens,
    Credit,
    Detokenize,
    Embed,
    Generate,
    Load,
    Rerank,
    SetLimits,
    Shutdown,
    Speak,
    Tokenize,
    Transcribe,
    Turn,
    Warm,
)

Request = Generate | Embed | Rerank | Transcribe | Speak
"""What a lease is taken for; each ends with one `Finished` or `Failed`."""

Ask = CountTokens | Tokenize | Detokenize | ClearCache | Warm
"""Small questions that need no lease; each is answered by one `Answer` or `Failed`."""

ToEngine = Load | SetLimits | Request | Ask | Credit | Cancel | Turn | Shutdown
Delta = ReasoningDelta | TextDelta | ToolCallStart | ToolCallArguments
Output = Delta | Bytes | Scores | Segment | Transcript
CallEvent = Started | PromptProgress | Output | ChoiceFinished | Finished | Failed
Answer = Counted | Tokenized | Detokenized | Cleared
FromEngine = (
    Hello | Loading | Ready | LoadFailed | Heartbeat | WantTurn | TurnOver | CallEvent | Answer
)
