"""Which models leave so that another fits. Pure functions over candidates in order of choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What is missing: bytes and process slots. Neither is missing when both are at most 0."""

    bytes: int
    engines: int = 0

    @property
    def met(self) -> bool:
        return self.bytes <= 0 and self.engines <= 0

    def less(self, victims: Sequence[Victim]) -> Need:
        """What is still missing when these have left."""
        return Need(
            self.bytes - sum(victim.charge for victim in victims), self.engines - len(victims)
        )


@dataclass(frozen=True, slots=True)
class Victim:
    name: str
    charge: int


def choose(candidates: Sequence[Victim], need: Need) -> list[Victim] | None:
    """Take in order until the need is met, then drop, largest first, each one not needed.

    None when all of them together do not meet it.
    """
    taken: list[Victim] = []
    for candidate in candidates:
        if need.less(taken).met:
            break
        taken.append(candidate)
    if not need.less(taken).met:
        return None
    # Reversed: of two of one size, the one that candidates put last is spared.
    for candidate in sorted(reversed(taken), key=lambda victim: -victim.charge):
        rest = [victim for victim in taken if victim is not candidate]
        if need.less(rest).met:
            taken = rest
    return taken


def choose_in_turn(groups: Sequence[Sequence[Victim]], need: Need) -> list[Victim] | None:
    """As `choose`, but a group is touched only when all of the groups before it do not do."""
    before: list[Victim] = []
    for group in groups:
        chosen = choose(group, need.less(before))
        if chosen is not None:
            return before + chosen
        before += group
    return None
