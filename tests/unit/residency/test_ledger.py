from __future__ import annotations

import pytest

from gateway.residency.ledger import Ledger, LedgerError


def test_a_reservation_must_fit_and_comes_back_once() -> None:
    ledger = Ledger(10)
    ledger.reserve("A", 7)
    with pytest.raises(LedgerError, match="'B' needs 4 B, 3 B is free"):
        ledger.reserve("B", 4)
    with pytest.raises(LedgerError, match="already holds"):
        ledger.reserve("A", 1)
    assert (ledger.committed, ledger.free, ledger.charge("A")) == (7, 3, 7)
    ledger.release("A")
    with pytest.raises(LedgerError, match="does not hold"):
        ledger.release("A")
    assert (ledger.committed, ledger.free, ledger.charge("A")) == (0, 10, 0)


def test_a_measurement_may_pass_the_budget_and_says_so() -> None:
    ledger = Ledger(10)
    ledger.reserve("A", 7)
    ledger.reserve("B", 3)
    causes = [ledger.overcommitted]
    ledger.measure("A", 9)
    causes.append(ledger.overcommitted)
    assert ledger.free == -2
    with pytest.raises(LedgerError):
        ledger.reserve("C", 1)
    ledger.measure("A", 7)
    causes.append(ledger.overcommitted)
    assert causes == [None, "A uses 9 B, 7 B were charged", None]


def test_a_budget_may_be_lowered_below_what_is_committed_and_says_so() -> None:
    ledger = Ledger(10)
    ledger.reserve("A", 7)
    ledger.set_budget(5)
    assert ledger.free == -2
    assert ledger.overcommitted == "the budget was lowered from 10 B to 5 B"
    ledger.change("A", 8)
    assert ledger.overcommitted == "A was given limits of 8 B"
    ledger.set_budget(12)
    assert ledger.free == 4
    assert not ledger.overcommitted


def test_stranded_bytes_count_until_they_are_back_or_their_time_is_over() -> None:
    ledger = Ledger(10)
    ledger.strand("A", 3, until=60)
    ledger.strand("B", 0, until=61)
    ledger.strand("A", 2, until=70)
    assert (ledger.stranded, ledger.free, ledger.stranded_until) == (5, 5, 60)
    ledger.reclaim("B", 4)
    ledger.reclaim("A", -1)
    ledger.reclaim("A", 1)
    assert ledger.stranded == 4
    ledger.expire(60)
    assert (ledger.stranded, ledger.stranded_until) == (2, 70)
    ledger.reclaim("A", 9)
    assert (ledger.stranded, ledger.free, ledger.stranded_until) == (0, 10, None)
