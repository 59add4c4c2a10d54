"""Which prompts a text model keeps: what is cleared, what is taken in ahead, where prompts are cut.

The text side of the prompt cache, which knows tokens only.
"""

from __future__ import annotations

import logging

from engines import wire
from engines.answer import tools_offered
from engines.base import EngineError
from engines.text.disk_cache import DiskCache
from engines.text.prompt_cache import unpack
from engines.text.segments import boundaries, opening
from engines.text.tiers import PromptTiers
from engines.text.vocabulary import Vocabulary, template_kwargs

_log = logging.getLogger(__name__)

_OWN_ROLES = ("system", "developer", "assistant")
"""After these a user's turn follows; after others the model's own does."""


def open_disk(given: wire.DiskCache | None) -> DiskCache | None:
    """The tier on disk; a folder that cannot be used is no reason not to load."""
    if given is None or not given.max_bytes:
        return None
    try:
        return DiskCache(given)
    except OSError as error:
        _log.warning(
            "prompts are not kept on disk: %s cannot be used (%s)",
            given.folder,
            error.strerror or error,
        )
        return None


def places(vocabulary: Vocabulary, request: wire.Generate, prompt: list[int]) -> tuple[int, ...]:
    """Where the cache of a request's prompt is worth keeping, if it cannot be cut back."""
    tools = request.tools if tools_offered(request) else []
    messages, kwargs = request.messages, template_kwargs(request)
    return boundaries(vocabulary.encode_chat, prompt, messages, kwargs, tools)


def warm_prompt(vocabulary: Vocabulary, question: wire.Warm, context: int) -> list[int]:
    """The tokens that every request begins with which goes on from these messages.

    After a user's turn that is the whole prompt but its last token, which every request feeds
    itself. `context` is the most there may be, in tokens. Raises `EngineError`.
    """
    messages, kwargs, tools = question.messages, question.template_kwargs, question.tools
    if messages and messages[-1].get("role") in _OWN_ROLES:
        tokens = opening(vocabulary.encode_chat, messages, kwargs, tools)
    else:
        tokens = vocabulary.encode_chat(messages, kwargs, tools)[:-1]
    if not len(tokens) < context:
        raise EngineError(
            "context_length_exceeded",
            f"the prompt to be warmed has {len(tokens)} tokens; the context length is {context}",
        )
    return tokens


def cleared(
    vocabulary: Vocabulary, prompts: PromptTiers, question: wire.ClearCache
) -> wire.Cleared:
    """Clears all, or the entries whose text begins with the prefix or is its beginning."""
    prefix = question.prefix
    if prefix is None:
        return wire.Cleared(question.id, *prompts.clear())

    def matches(key: bytes) -> bool:
        text = vocabulary.beginning(unpack(key), len(prefix))
        return text.startswith(prefix) or prefix.startswith(text)

    return wire.Cleared(question.id, *prompts.clear(matches))
