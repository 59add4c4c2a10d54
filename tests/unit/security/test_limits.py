"""Token buckets on a clock of the test's own."""

from __future__ import annotations

import pytest

from gateway.security.limits import Bucket, Buckets


def test_a_full_bucket_gives_its_tokens_and_then_says_when() -> None:
    bucket = Bucket(2, 0.0, 2)
    bucket, first = bucket.take(0.0, 2)
    bucket, second = bucket.take(0.0, 2)
    bucket, wait_s = bucket.take(0.0, 2)
    assert (first, second, wait_s) == (0, 0, 30)
    bucket, wait_s = bucket.take(10.0, 2)
    assert wait_s == pytest.approx(20)
    _, wait_s = bucket.take(30.0, 2)
    assert wait_s == 0


def test_it_never_holds_more_than_a_minute_gives() -> None:
    bucket, _ = Bucket(3, 0.0, 3).take(1e6, 3)
    assert bucket.tokens == 2


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket, wait_s = Bucket(0, 100.0, 60).take(50.0, 60)
    assert (bucket.tokens, wait_s) == (0, 1)


def test_a_lower_rate_counts_at_once() -> None:
    bucket, _ = Bucket(100, 0.0, 100).take(0.0, 2)
    assert bucket.tokens == 1


def test_each_key_has_its_own_and_one_that_is_gone_is_forgotten() -> None:
    buckets = Buckets()
    assert buckets.take("a", 1, 0.0) == 0
    assert buckets.take("a", 1, 0.0) == 60
    assert buckets.take("b", 1, 0.0) == 0
    buckets.keep_only(["b"])
    assert buckets.take("a", 1, 0.0) == 0
    assert buckets.take("b", 1, 0.0) == 60
