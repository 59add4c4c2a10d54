"""The memory account: one budget, one charge per process that exists, and what is stranded.

Invariants: a reservation is made only when it fits, and is returned exactly once. Only a
measurement or a change of limits or of the budget can take the sum over the budget, and then
`overcommitted` says which one did.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.residency.text import size

STRANDED_S = 60.0
"""How long memory that has not come back counts against the budget."""


class LedgerError(Exception):
    """A reservation that does not fit, is made twice or is returned twice: a bug of ours."""


@dataclass(slots=True)
class _Stranded:
    model: str
    bytes: int
    until: float


class Ledger:
    """Bytes by model. Owned by the scheduler; nobody else changes it."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._charges: dict[str, int] = {}
        self._stranded: list[_Stranded] = []
        self._cause: str | None = None

    @property
    def committed(self) -> int:
        return sum(self._charges.values())

    @property
    def stranded(self) -> int:
        """What ended processes have left behind, as far as it still counts."""
        return sum(entry.bytes for entry in self._stranded)

    @property
    def stranded_until(self) -> float | None:
        """When the next part of it ceases to count; None when nothing is stranded."""
        return min((entry.until for entry in self._stranded), default=None)

    @property
    def free(self) -> int:
        """Budget less what is committed or stranded; negative while overcommitted."""
        return self.budget - self.committed - self.stranded

    @property
    def overcommitted(self) -> str | None:
        """Why more is committed than the budget; None while it is not."""
        return self._cause if self.free < 0 else None

    def charge(self, model: str) -> int:
        """What the model holds, 0 without a reservation."""
        return self._charges.get(model, 0)

    def reserve(self, model: str, charge: int) -> None:
        """Raises `LedgerError` when it does not fit or the model already holds something."""
        if model in self._charges:
            raise LedgerError(f"{model!r} already holds a reservation")
        if charge > self.free:
            raise LedgerError(f"{model!r} needs {size(charge)}, {size(max(0, self.free))} is free")
        self._charges[model] = charge

    def measure(self, model: str, charge: int) -> None:
        """Replace the charge by what is really held, whether or not that fits."""
        before = self._charges[model]
        self._charge(model, charge, f"{model} uses {size(charge)}, {size(before)} were charged")

    def change(self, model: str, charge: int) -> None:
        """Replace the charge because the limits have changed, whether or not that fits."""
        self._charge(model, charge, f"{model} was given limits of {size(charge)}")

    def release(self, model: str) -> int:
        """The charge that is returned. Raises `LedgerError` when the model holds nothing."""
        charge = self._charges.pop(model, None)
        if charge is None:
            raise LedgerError(f"{model!r} returned a reservation that it does not hold")
        return charge

    def set_budget(self, budget: int) -> None:
        if budget < self.budget:
            self._cause = f"the budget was lowered from {size(self.budget)} to {size(budget)}"
        self.budget = budget

    def strand(self, model: str, count: int, until: float) -> None:
        """Count these bytes of an ended process until they are back, or until that moment."""
        if count > 0:
            self._stranded.append(_Stranded(model, count, until))

    def reclaim(self, model: str, count: int) -> None:
        """So many stranded bytes of this model are back; the ones that went first come first."""
        for entry in self._stranded:
            if entry.model == model:
                back = min(entry.bytes, max(0, count))
                entry.bytes -= back
                count -= back
        self._stranded = [entry for entry in self._stranded if entry.bytes]

    def expire(self, now: float) -> None:
        """Stranded bytes whose time is over cease to count."""
        self._stranded = [entry for entry in self._stranded if now < entry.until]

    def _charge(self, model: str, charge: int, cause: str) -> None:
        before = self._charges[model]
        self._charges[model] = charge
        if charge > before and self.free < 0:
            self._cause = cause
