"""Who is served when, and what leaves for whom. Sizes are bytes, the budget is 10."""

from __future__ import annotations

import pytest

from gateway.residency import ModelSpec
from tests.unit.residency.stories import BIG, SMALL, Story, check, policy

STORIES: dict[str, Story] = {
    "requests that meet at a cold model share one load": (
        policy("fail"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        0 request 2 A -> wait 2 loading
        1 request 3 A -> wait 3 loading
        1 load A      ->
        2 leave 2     ->
        3 ready A 7   -> grant 1 A, grant 3 A
        3 request 4 A -> grant 4 A
        """,
    ),
    "a resident model is served while another loads and a third waits": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        1 request 2 P -> load P, wait 2 loading
        2 request 3 B -> wait 3 room
        2 request 4 A -> grant 4 A
        3 ready P 1   -> grant 2 P
        """,
    ),
    "concurrency is bounded, the queue has a limit and is served by priority": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1, max_queue=3),),
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 7        -> grant 1 A
        1 request 2 A low  -> wait 2 room
        2 request 3 A      -> wait 3 room
        3 request 4 A high -> wait 4 room
        4 request 5 A high -> reject 5 queue_full
        5 release 1        -> grant 4 A
        6 release 4        -> grant 3 A
        7 release 3        -> grant 2 A
        """,
    ),
    "a waiter whose model loads is not refused, however long that takes": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        31 tick       ->
        99 ready A 7  -> grant 1 A
        """,
    ),
    "whoever has waited longer than max_wait_s precedes every class": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1),),
        """
        0 request 1 A       -> load A, wait 1 loading
        1 ready A 7         -> grant 1 A
        1 request 2 A low   -> wait 2 room
        20 request 3 A high -> wait 3 room
        21 release 1        -> grant 2 A
        """,
    ),
    "a waiter of a busy model is refused when its time is over": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1),),
        """
        0 request 1 A  -> load A, wait 1 loading
        9 request 2 A  -> wait 2 loading
        # Loading does not count: 2 came at 9 and may wait 30 s from 10 on.
        10 ready A 7   -> grant 1 A, wait 2 room
        39 tick        ->
        40 tick        -> reject 2 queue_full
        """,
    ),
    "the least recently used idle models leave, and none that is not needed": (
        policy(),
        SMALL,
        """
        0 request 1 R -> load R, wait 1 loading
        1 ready R 1   -> grant 1 R
        1 request 2 S -> load S, wait 2 loading
        2 ready S 1   -> grant 2 S
        2 request 3 T -> load T, wait 3 loading
        3 ready T 1   -> grant 3 T
        4 release 2   ->
        5 release 1   ->
        6 release 3   ->
        # U needs 6 of a full 10: S (3) is oldest, R (4) next, and both are needed.
        20 request 4 U -> stop S evicted, stop R evicted, wait 4 room
        21 exit S      ->
        22 exit R      -> load U, wait 4 loading
        """,
    ),
    "a victim that a later and larger one makes superfluous stays": (
        policy(),
        (ModelSpec("S", 2), ModelSpec("L", 8), ModelSpec("N", 7)),
        """
        0 request 1 S  -> load S, wait 1 loading
        1 ready S 1    -> grant 1 S
        1 request 2 L  -> load L, wait 2 loading
        2 ready L 1    -> grant 2 L
        3 release 1    ->
        4 release 2    ->
        20 request 3 N -> stop L evicted, wait 3 room
        """,
    ),
    "nobody is evicted when that would not make room": (
        policy(),
        (ModelSpec("S", 2), ModelSpec("L", 8), ModelSpec("N", 9)),
        """
        0 request 1 S  -> load S, wait 1 loading
        1 ready S 1    -> grant 1 S
        1 request 2 L  -> load L, wait 2 loading
        2 ready L 1    -> grant 2 L
        3 release 1    ->
        20 request 3 N -> wait 3 room
        50 tick        -> reject 3 no_capacity
        """,
    ),
    "min_resident_s protects a model that has just loaded": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 release 1   ->
        3 request 2 B -> wait 2 room
        6 tick        -> stop A evicted
        7 exit A      -> load B, wait 2 loading
        """,
    ),
    "a load nobody waits for goes on, and its model becomes idle": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 leave 1     ->
        2 ready A 7   ->
        3 request 2 A -> grant 2 A
        """,
    ),
    "a load nobody waits for is cancelled before any ready model is evicted": (
        policy(),
        (ModelSpec("S", 2), ModelSpec("L", 8), ModelSpec("N", 8)),
        """
        0 request 1 S  -> load S, wait 1 loading
        1 ready S 1    -> grant 1 S
        2 release 1    ->
        20 request 2 L -> load L, wait 2 loading
        21 leave 2     ->
        22 request 3 N -> cancel-load L, wait 3 room
        # It was ready in the same moment: too late, the memory is promised.
        22 ready L 7   ->
        23 request 4 L -> wait 4 room
        24 fail L late -> load N, wait 3 loading
        """,
    ),
    "a pinned load is not cancelled for anybody": (
        policy("preempt"),
        (ModelSpec("A", 8, pin=True), ModelSpec("B", 8)),
        """
        0 load A      -> load A
        1 request 1 B -> reject 1 no_capacity
        2 ready A 7   ->
        """,
    ),
    "two waiters each have a victim of their own": (
        policy(load_concurrency=2),
        (ModelSpec("S", 5), ModelSpec("T", 5), ModelSpec("M", 5), ModelSpec("N", 4)),
        """
        0 load S      -> load S
        0 load T      -> load T
        1 ready S 1   ->
        1 ready T 1   ->
        2 request 1 M -> wait 1 room
        2 request 2 N -> wait 2 room
        6 tick        -> stop S evicted, stop T evicted
        7 exit T      -> load M, wait 1 loading
        8 exit S      -> load N, wait 2 loading
        """,
    ),
    "one load at a time, by priority, then arrival": (
        policy(),
        SMALL,
        """
        0 request 1 R      -> load R, wait 1 loading
        0 request 2 S low  -> wait 2 room
        1 request 3 T high -> wait 3 room
        2 ready R 1        -> grant 1 R, load T, wait 3 loading
        3 ready T 1        -> grant 3 T, load S, wait 2 loading
        """,
    ),
    "no more processes than max_engines": (
        policy(max_engines=2),
        SMALL,
        """
        0 request 1 S -> load S, wait 1 loading
        1 ready S 1   -> grant 1 S
        1 request 2 T -> load T, wait 2 loading
        2 ready T 1   -> grant 2 T
        3 request 3 R -> wait 3 room
        6 release 1   -> stop S evicted
        7 release 2   ->
        7 exit S      -> load R, wait 3 loading
        """,
    ),
    "fail refuses at once while the room is in use": (
        policy("fail"),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 request 2 B   -> reject 2 no_capacity
        2.1 request 3 P -> load P, wait 3 loading
        3 ready P 1     -> grant 3 P
        3 release 1     ->
        # Inside min_resident_s counts as in use, memory on its way back does not.
        5 request 4 B   -> reject 4 no_capacity
        6 request 5 B   -> stop A evicted, wait 5 room
        6 request 6 A   -> reject 6 no_capacity
        8 exit A        -> load B, wait 5 loading
        """,
    ),
    "wait and wait_then_fail refuse at wait_timeout_s": (
        policy("wait_then_fail"),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 request 2 B   -> wait 2 room
        2.1 request 3 P -> load P, wait 3 loading
        4 ready P 1     -> grant 3 P
        31 tick         ->
        32 tick         -> reject 2 no_capacity
        33 request 4 A  -> grant 4 A
        """,
    ),
    "preempt ends the running calls after the grace": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        1 request 2 A   -> grant 2 A
        2 request 3 B   -> wait 3 room
        # P fits beside both, but B is first at the one load slot.
        2.1 request 4 P -> wait 4 room
        # What is asked of a draining model waits as if it were cold.
        2.2 request 5 A -> wait 5 room
        3 release 1     ->
        4 tick          -> end A 2 preempted
        5 release 2     -> stop A preempted
        6 exit A        -> load B, wait 3 loading
        7 ready B 7     -> grant 3 B, load P, wait 4 loading
        """,
    ),
    "a call that ends within the grace ends well": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 release 1   -> stop A preempted
        4 exit A      -> load B, wait 2 loading
        """,
    ),
    "preemption is called off when whom it was for has left": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 request 3 A -> wait 3 room
        3 leave 2     -> grant 3 A
        4 tick        ->
        """,
    ),
    "the waiters of a preempted model do not take the room back": (
        policy("preempt"),
        (ModelSpec("A", 8, max_concurrency=1), ModelSpec("B", 8)),
        """
        0 request 1 A -> load A, wait 1 loading
        0 request 2 A -> wait 2 loading
        1 ready A 7   -> grant 1 A, wait 2 room
        2 request 3 B -> wait 3 room
        4 tick        -> end A 1 preempted
        4 release 1   -> stop A preempted
        5 exit A      -> load B, wait 3 loading
        """,
    ),
    "nobody is preempted before there is a load slot to use the room": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        1 load P      -> load P
        2 request 2 B -> wait 2 room
        5 tick        ->
        6 ready P 1   ->
        8 tick        -> end A 1 preempted
        """,
    ),
    "an unload during a preemption is not called off with it": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 unload A    ->
        3 leave 2     ->
        4 tick        -> end A 1 preempted
        """,
    ),
    "a load asked for during a preemption is met when that is called off": (
        policy("preempt"),
        (ModelSpec("A", 8, ttl_s=10), ModelSpec("B", 8)),
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 load A      ->
        3 leave 2     ->
        4 release 1   ->
        14 tick       -> stop A ttl
        15 exit A     ->
        """,
    ),
    "an idle model leaves before a busy one is preempted": (
        policy("preempt", min_resident_s=20),
        (ModelSpec("S", 4), ModelSpec("T", 4), ModelSpec("N", 5)),
        """
        0 request 1 S -> load S, wait 1 loading
        1 ready S 1   -> grant 1 S
        1 request 2 T -> load T, wait 2 loading
        2 ready T 1   -> grant 2 T
        3 release 2   ->
        4 request 3 N -> stop T evicted, wait 3 room
        """,
    ),
    "wait_then_preempt lets the victim go on for preempt_after_s": (
        policy("wait_then_preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        11 tick       ->
        12 tick       ->
        14 tick       -> end A 1 preempted
        15 release 1  -> stop A preempted
        16 exit A     -> load B, wait 2 loading
        """,
    ),
    "a pinned model is never preempted": (
        policy("preempt"),
        (ModelSpec("A", 8, pin=True), ModelSpec("B", 8)),
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> reject 2 no_capacity
        3 release 1   ->
        """,
    ),
    "a request waits when a pin ends in time": (
        policy(),
        (ModelSpec("A", 8), ModelSpec("B", 8)),
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 release 1   ->
        3 pin A 20    ->
        4 request 2 B -> wait 2 room
        20 tick       -> stop A evicted
        """,
    ),
    "from max_wait_s of a waiter on, its victim grants nothing new": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        21 request 3 A -> grant 3 A
        22 tick        ->
        23 request 4 A -> wait 4 room
        24 release 1   ->
        25 release 3   -> stop A evicted
        26 exit A      -> load B, wait 2 loading
        27 ready B 7   -> grant 2 B
        # Now the other way round: A's waiter is starved once it has waited 20 s.
        44 tick        ->
        45 release 2   -> stop B evicted
        46 exit B      -> load A, wait 4 loading
        """,
    ),
    "a starved waiter keeps its victim while others come and go": (
        policy(),
        (ModelSpec("S", 5), ModelSpec("T", 5), ModelSpec("N", 5)),
        """
        0 request 1 S low -> load S, wait 1 loading
        1 ready S 1       -> grant 1 S
        1 request 2 S low -> grant 2 S
        1 request 3 T     -> load T, wait 3 loading
        2 ready T 1       -> grant 3 T
        3 request 4 N     -> wait 4 room
        # S is hurt least: its calls are of low priority.
        23 tick           ->
        24 request 5 T low -> grant 5 T
        # Now T would be, but S it stays.
        25 release 3      ->
        26 request 6 T    -> grant 6 T
        27 request 7 S    -> wait 7 room
        28 release 1      ->
        29 release 2      -> stop S evicted
        30 exit S         -> load N, wait 4 loading
        """,
    ),
    "a victim serves again when the starved waiter has left": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        22 tick        ->
        23 request 3 A -> wait 3 room
        24 leave 2     -> grant 3 A
        """,
    ),
    "later small loads do not take the room of a starved large one": (
        policy(),
        (ModelSpec("S", 4), ModelSpec("T", 4), ModelSpec("V", 2), ModelSpec("L", 9)),
        """
        0 request 1 S  -> load S, wait 1 loading
        1 ready S 1    -> grant 1 S
        1 request 2 T  -> load T, wait 2 loading
        2 ready T 1    -> grant 2 T
        3 request 3 L  -> wait 3 room
        23 tick        ->
        24 request 4 V -> wait 4 room
        25 release 1   ->
        26 request 5 S -> wait 5 room
        27 release 2   -> stop S evicted, stop T evicted
        28 exit S      ->
        28 exit T      -> load L, wait 3 loading
        """,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    check(STORIES[name])
