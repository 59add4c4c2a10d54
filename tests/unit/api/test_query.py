"""The parameters of a query string."""

from __future__ import annotations

import pytest

from gateway.api.query import Query, flag, number, query_of
from gateway.errors import InvalidRequest


def query(text: str) -> Query:
    return query_of({"query_string": text.encode()})


def test_the_first_value_counts() -> None:
    assert query("a=1&a=2&b=x%20y") == {"a": "1", "b": "x y"}
    assert query("") == {}
    with pytest.raises(InvalidRequest):
        query("&".join(f"a{n}=1" for n in range(101)))


def test_a_flag() -> None:
    assert flag(query("a=TRUE"), "a")
    assert not flag(query("a=0"), "a")
    assert not flag({}, "a")
    with pytest.raises(InvalidRequest):
        flag(query("a=maybe"), "a")


@pytest.mark.parametrize("text", ["x", "-1", "0", "11", "1.5", "9" * 30, "٣"])
def test_a_number_is_within_bounds(text: str) -> None:
    assert number({"n": "7"}, "n", 3, 1, 10) == 7
    assert number({}, "n", 3, 1, 10) == 3
    with pytest.raises(InvalidRequest) as failed:
        number({"n": text}, "n", 3, 1, 10)
    assert failed.value.param == "n"
