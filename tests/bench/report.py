"""How a figure of the benchmark is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One measured figure and, where the product promises one, the bound it has to keep."""

    what: str
    value: float
    unit: str
    bound: str = ""
    holds: bool = True

    def __str__(self) -> str:
        mark = "" if not self.bound else "ok" if self.holds else "OVER"
        return f"{mark:4} {self.what:66} {self.value:10.2f} {self.unit:9} {self.bound}".rstrip()


def at_most(what: str, value: float, unit: str, bound: float) -> Line:
    return Line(what, value, unit, f"<= {bound:g}", value <= bound)


def at_least(what: str, value: float, unit: str, bound: float) -> Line:
    return Line(what, value, unit, f">= {bound:g}", value >= bound)
