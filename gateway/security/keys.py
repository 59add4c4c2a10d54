"""API keys: from the headers of a request to what its sender may do.

Only digests of keys are kept here, and every comparison looks at all of them, so neither memory
nor time says anything about a key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import compress
from operator import not_

from gateway.errors import Forbidden
from gateway.registry.find import Model
from gateway.registry.schema import ApiKey, Right
from gateway.residency import Priority
from gateway.router import Router
from gateway.server import Scope
from gateway.supervisor.setup import Wish

MAX_CANDIDATES = 4
"""Headers of one request that are looked at: clients send two at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """What the sender of a request may do. `name` is its key's, None for one without a key.

    `models` are patterns as of a shell; `rate_limit` is in requests a minute.
    """

    name: str | None
    rights: frozenset[Right]
    models: tuple[str, ...]
    priority: Priority | None = None
    rate_limit: int | None = None
    may_evict: bool = True

    def demand(self, right: Right) -> None:
        """Raises `Forbidden` without this right."""
        if right not in self.rights:
            raise Forbidden(
                f"the key {self.name!r} has no right to {right}; "
                f"the operator can add it to its rights in server.api_keys"
            )

    @property
    def may_read_reloads(self) -> bool:
        return "admin" in self.rights

    def sees(self, model: Model) -> bool:
        """Whether a pattern takes the name of the model, or one of its aliases."""
        names = (model.entry.name, *model.entry.aliases)
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)

    def router(self, router: Router) -> Router:
        """The models that it sees; the others are forbidden, and nowhere named."""
        if "*" in self.models:
            return router
        seen = [self.sees(model) for model in router.models]
        return Router(compress(router.models, seen), compress(router.models, map(not_, seen)))

    def wish(self, wish: Wish) -> Wish:
        """What the request asks for, within what the key grants."""
        return replace(wish, granted=self.priority, may_evict=wish.may_evict and self.may_evict)


LOCAL = Access(None, frozenset(("infer", "manage", "admin")), ("*",))
"""Without keys everyone who gets this far has all rights."""

NOBODY = Access(None, frozenset(), ())
"""Somebody without a key on a route that is open to all."""

WATCHER = Access(None, frozenset(), ("*",))
"""Somebody without a key where the operator has opened metrics and status."""


def access_of(scope: Scope) -> Access:
    """What the gate found out about the sender of this request."""
    access: Access = scope["state"]["access"]
    return access


class Keys:
    """The keys in force. Without any, `find` finds none."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._known = [(_digest(key.key.encode()), _access(key)) for key in keys if key.key]

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(access.name for _, access in self._known if access.name is not None)

    def find(self, scope: Scope) -> Access | None:
        """The first key among the request's headers that is known."""
        for candidate in candidates(scope):
            digest = _digest(candidate)
            found = None
            for known, access in self._known:
                if hmac.compare_digest(known, digest):
                    found = access
            if found is not None:
                return found
        return None


def candidates(scope: Scope) -> list[bytes]:
    """The keys that a request shows, as OpenAI's and as Anthropic's clients send them."""
    return list(_candidates(scope))[:MAX_CANDIDATES]


def _candidates(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, credentials = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield credentials.strip()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _access(key: ApiKey) -> Access:
    return Access(
        name=key.name,
        rights=frozenset(key.rights),
        models=key.models,
        priority=Priority[key.priority.upper()] if key.priority else None,
        rate_limit=key.rate_limit,
        may_evict=key.may_evict,
    )
