"""What a scripted model reads of a request for text, and the choices that it fills."""

from __future__ import annotations

from engines import script, wire
from engines.answer import Answer, make_pipeline
from engines.parsers import registry
from engines.words import Words, count_messages, words


def prompt_of(request: wire.Generate, known: Words) -> tuple[list[dict[str, object]], int]:
    """The request's messages and how many tokens they are; other prompts are one message."""
    if request.prompt is None and request.token_ids is None:
        return request.messages, count_messages(request.messages)
    if request.token_ids is not None:
        text, tokens = known.decode(request.token_ids), len(request.token_ids)
    else:
        text = request.prompt or ""
        tokens = len(words(text))
    return [{"role": "user", "content": text}], tokens


def answer_of(request: wire.Generate, told: script.Script, choice: int) -> Answer:
    """One choice; `auto` is no parser, as a scripted model shows no format. Raises `EngineError`"""
    given = request.parsers
    parsers = wire.Parsers(
        None if given.tool == registry.AUTO else given.tool,
        None if given.reasoning == registry.AUTO else given.reasoning,
    )
    pipeline = make_pipeline(
        request,
        parsers,
        prompt_tail=told.prompt_tail,
        special_tokens=told.special_tokens,
        thinking=request.template_kwargs.get("enable_thinking", request.reasoning.enabled),
    )
    return Answer(
        request.id,
        choice,
        pipeline,
        parallel=request.tool_choice.parallel,
        logprobs=request.logprobs is not None,
    )


def logprobs_of(text: str, alternatives: int) -> list[wire.TokenLogprob]:
    """Made up, and always the same: each word and beside it some it was not."""
    others = [(f"other{number}", -0.1 - number) for number in range(1, alternatives)]
    return [
        wire.TokenLogprob(word, -0.1, ((word, -0.1), *others)[:alternatives])
        for word in words(text)
    ]
