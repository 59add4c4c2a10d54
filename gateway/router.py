"""From the name a client asked for to the registry entry that serves it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from gateway.errors import Forbidden, InvalidRequest, ModelNotFound
from gateway.registry.find import Model
from gateway.registry.schema import Kind

_FOR: dict[Kind, str] = {
    "text": "chat and completions (/v1/chat/completions and others)",
    "vision": "chat with images (/v1/chat/completions and others)",
    "embedding": "embeddings (/v1/embeddings)",
    "rerank": "ranking documents (/v1/rerank)",
    "transcription": "transcribing audio (/v1/audio/transcriptions)",
    "speech": "speaking texts (/v1/audio/speech)",
}

MATCHES = 3
NAME_CHARS = 100


class Router:
    """Names and aliases of one registry. Aliases never chain. `hidden` may not be used."""

    def __init__(self, models: Iterable[Model], hidden: Iterable[Model] = ()) -> None:
        self.models = tuple(models)
        self._by_name = {model.entry.name: model for model in self.models}
        for model in self.models:
            for alias in model.entry.aliases:
                self._by_name[alias] = model
        self._hidden = {
            name for model in hidden for name in (model.entry.name, *model.entry.aliases)
        }

    def find(self, name: str) -> Model:
        """Raises `ModelNotFound` with close matches, `Forbidden` for a hidden model."""
        model = self._by_name.get(name)
        if model is None:
            if name in self._hidden:
                raise Forbidden(f"this key may not use the model {name!r}", param="model")
            raise ModelNotFound(self._unknown(name), param="model")
        return model

    def resolve(self, name: str, kind: Kind, *others: Kind) -> Model:
        """The entry, if it can do what is asked. Raises as `find`, and `InvalidRequest`.

        `others` are kinds that can do it too.
        """
        model = self.find(name)
        own = model.entry.kind or "text"
        if own not in (kind, *others):
            raise InvalidRequest(
                f"model {name!r} is for {_FOR[own]}, not for {_FOR[kind]}",
                param="model",
            )
        return model

    def _unknown(self, name: str) -> str:
        shown = name if len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}…"
        message = f"there is no model {shown!r} in the registry"
        if not self._by_name:
            return f"{message}, which has no models yet"
        close = get_close_matches(name[:NAME_CHARS], self._by_name, n=MATCHES)
        if close:
            return f"{message}; did you mean {' or '.join(map(repr, close))}?"
        known = ", ".join(sorted(self._by_name)[:10])
        return f"{message}; GET /v1/models lists what there is, such as {known}"


def served_by(model: Model) -> str:
    """The entry whose engine serves this one: a variant's base, else itself."""
    return model.entry.of or model.entry.name
