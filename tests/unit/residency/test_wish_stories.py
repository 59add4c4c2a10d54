"""Pins, keep-alive, preloads, requests that evict nobody, shrinking, and stranded memory.

Sizes are bytes, the budget is 10.
"""

from __future__ import annotations

import pytest

from gateway.residency import ModelSpec, Priority
from tests.unit.residency.stories import BIG, SMALL, Story, check, policy

STORIES: dict[str, Story] = {
    "a pin protects from contention until it expires": (
        policy(min_resident_s=0),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 release 1   ->
        3 pin A 9     ->
        4 request 2 B -> wait 2 room
        9 tick        -> stop A evicted
        10 exit A     -> load B, wait 2 loading
        """,
    ),
    "a pin without an end stays until it is taken away": (
        policy(),
        (ModelSpec("A", 8, ttl_s=5),),
        """
        0 load A    -> load A
        1 ready A 7 ->
        2 pin A     ->
        99 tick     ->
        99 unpin A  -> stop A ttl
        """,
    ),
    "a pin in the registry outlasts the other": (
        policy(),
        (ModelSpec("A", 8, ttl_s=5, pin=True),),
        """
        0 load A    -> load A
        1 ready A 7 ->
        2 pin A 3   ->
        3 tick      ->
        4 unpin A   ->
        99 tick     ->
        """,
    ),
    "a pin loads nothing, and one that is over already changes nothing": (
        policy(),
        (ModelSpec("A", 8, ttl_s=5),),
        """
        0 pin A     ->
        1 load A    -> load A
        2 ready A 7 ->
        99 pin A 99 -> stop A ttl
        """,
    ),
    "a pin calls a preemption off": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 pin A 50    ->
        4 tick        ->
        5 request 3 A -> grant 3 A
        """,
    ),
    "an operator's unload ends a pinned model": (
        policy(),
        BIG,
        """
        0 load A    -> load A
        1 ready A 7 ->
        2 pin A     ->
        3 unload A  -> stop A requested
        """,
    ),
    "keep_alive 0 unloads as soon as the last lease is over": (
        policy(),
        BIG,
        """
        0 request 1 A keep=0 -> load A, wait 1 loading
        0 request 2 A keep=0 -> wait 2 loading
        1 ready A 7          -> grant 1 A, grant 2 A
        2 release 1          ->
        3 release 2          -> stop A ttl
        """,
    ),
    "keep_alive does not unload what somebody waits for": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1),),
        """
        0 request 1 A keep=0 -> load A, wait 1 loading
        0 request 2 A        -> wait 2 loading
        1 ready A 7          -> grant 1 A, wait 2 room
        2 release 1          -> grant 2 A
        3 release 2          ->
        """,
    ),
    "keep_alive replaces the TTL until the next lease ends": (
        policy(),
        (ModelSpec("A", 8, ttl_s=10),),
        """
        0 request 1 A keep=-1  -> load A, wait 1 loading
        1 ready A 7            -> grant 1 A
        2 release 1            ->
        90 tick                ->
        91 request 2 A keep=20 -> grant 2 A
        92 release 2           ->
        111 tick               ->
        111.5 request 3 A      -> grant 3 A
        112 release 3          ->
        121 tick               ->
        122 tick               -> stop A ttl
        """,
    ),
    "the lease released last decides": (
        policy(),
        (ModelSpec("A", 8),),
        """
        0 request 1 A keep=3  -> load A, wait 1 loading
        0 request 2 A keep=-1 -> wait 2 loading
        1 ready A 7           -> grant 1 A, grant 2 A
        2 release 2           ->
        3 release 1           ->
        6 tick                -> stop A ttl
        """,
    ),
    "keep_alive does not outlast the process": (
        policy(),
        (ModelSpec("A", 8, ttl_s=10),),
        """
        0 request 1 A keep=-1 -> load A, wait 1 loading
        1 ready A 7           -> grant 1 A
        2 release 1           ->
        3 unload A            -> stop A requested
        4 exit A              ->
        5 load A              -> load A
        6 ready A 7           ->
        16 tick               -> stop A ttl
        """,
    ),
    "keep_alive holds nobody against contention": (
        policy(),
        BIG,
        """
        0 request 1 A keep=-1 -> load A, wait 1 loading
        1 ready A 7           -> grant 1 A
        2 release 1           ->
        9 request 2 B         -> stop A evicted, wait 2 room
        """,
    ),
    "a request that may evict nobody uses free room": (
        policy(),
        SMALL,
        """
        0 request 1 R free-room -> load R, wait 1 loading
        1 request 2 S free-room -> wait 2 room
        2 ready R 3             -> grant 1 R, load S, wait 2 loading
        3 ready S 3             -> grant 2 S
        4 release 1             ->
        9 request 3 U free-room -> reject 3 no_capacity
        9 request 4 R free-room -> grant 4 R
        9 request 5 T free-room -> load T, wait 5 loading
        """,
    ),
    "a request that may evict nobody joins what is on its way": (
        policy(),
        BIG,
        """
        0 request 1 A            -> load A, wait 1 loading
        1 ready A 7              -> grant 1 A
        2 release 1              ->
        9 request 2 B free-room  -> reject 2 no_capacity
        9 request 3 B            -> stop A evicted, wait 3 room
        9 request 4 B free-room  -> wait 4 room
        10 exit A                -> load B, wait 3 loading, wait 4 loading
        11 request 5 B free-room -> wait 5 loading
        """,
    ),
    "who may evict is not refused with those who may not": (
        policy(),
        BIG,
        """
        0 request 1 A           -> load A, wait 1 loading
        1 ready A 7             -> grant 1 A
        2 request 2 B           -> wait 2 room
        3 request 3 B free-room -> reject 3 no_capacity
        4 release 1             ->
        6 tick                  -> stop A evicted
        """,
    ),
    "a request that may evict nobody does not take the turn of those that may": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1), ModelSpec("B", 8), ModelSpec("C", 8)),
        """
        0 request 1 A                -> load A, wait 1 loading
        1 ready A 7                  -> grant 1 A
        2 request 2 B                -> wait 2 room
        3 request 3 C low            -> wait 3 room
        4 request 4 C high free-room -> reject 4 no_capacity
        6 release 1                  -> stop A evicted
        7 exit A                     -> load B, wait 2 loading
        """,
    ),
    "a refusal of those who may not evict is followed by what the others get, in one step": (
        policy("fail"),
        (ModelSpec("A", 5), ModelSpec("B", 4)),
        """
        0 request 1 A                -> load A, wait 1 loading
        0 request 2 B low            -> wait 2 room
        0 request 3 B high free-room -> wait 3 room
        1 footprint A 9              -> reject 3 no_capacity, reject 2 no_capacity
        """,
    ),
    "a request that may evict nobody preempts nobody and cancels no load": (
        policy("preempt"),
        BIG,
        """
        0 load A                -> load A
        1 request 1 B free-room -> reject 1 no_capacity
        2 ready A 7             ->
        3 request 2 A           -> grant 2 A
        4 request 3 B free-room -> reject 3 no_capacity
        """,
    ),
    "preloads load in turn, and what does not fit is left out": (
        policy(),
        (ModelSpec("A", 4), ModelSpec("B", 5), ModelSpec("C", 4), ModelSpec("D", 1)),
        """
        0 load A free-room  -> load A
        0 load B free-room  ->
        0 load C free-room  ->
        0 load D free-room  ->
        90 ready A 4        -> load B
        180 ready B 5       -> load D
        181 ready D 1       ->
        200 unload A        -> stop A requested
        201 exit A          ->
        """,
    ),
    "preloads keep to their order whatever their priority": (
        policy(),
        (ModelSpec("A", 4), ModelSpec("B", 4), ModelSpec("C", 4, priority=Priority.HIGH)),
        """
        0 load A free-room -> load A
        0 load B free-room ->
        0 load C free-room ->
        1 ready A 4        -> load B
        2 ready B 4        ->
        """,
    ),
    "requests precede preloads": (
        policy(),
        SMALL,
        """
        0 load R free-room  -> load R
        0 load S free-room  ->
        0 load T free-room  ->
        1 request 1 T low   -> wait 1 room
        2 ready R 4         -> load T, wait 1 loading
        3 ready T 3         -> grant 1 T, load S
        """,
    ),
    "a preload waits while the system is short of memory": (
        policy(),
        BIG,
        """
        0 pressure warning  ->
        1 load A free-room  ->
        90 pressure normal  -> load A
        """,
    ),
    "a preload does not weaken what an operator has asked for": (
        policy(),
        BIG,
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 7        -> grant 1 A
        2 load B           ->
        3 load B free-room ->
        4 release 1        ->
        6 tick             -> stop A evicted
        """,
    ),
    "a preloaded model may go by its TTL": (
        policy(),
        (ModelSpec("A", 8, ttl_s=10),),
        """
        0 load A free-room -> load A
        1 ready A 7        ->
        11 tick            -> stop A ttl
        """,
    ),
    "what shrinking can do alone is not done by eviction": (
        policy(),
        (ModelSpec("A", 5, 2), ModelSpec("B", 4, 2), ModelSpec("C", 3)),
        """
        0 load A        -> load A
        1 ready A 5     ->
        1 load B        -> load B
        2 ready B 1     ->
        9 request 1 C   -> limits A 0, wait 1 room
        9.5 footprint B 1 ->
        10 footprint A 3 -> load C, wait 1 loading
        """,
    ),
    "a cache that is not in use gives its room at once": (
        policy(),
        (ModelSpec("A", 5, 2), ModelSpec("B", 4), ModelSpec("C", 3)),
        """
        0 load A        -> load A
        1 ready A 3     ->
        1 load B        -> load B
        2 ready B 1     ->
        3 request 1 C   -> limits A 0, load C, wait 1 loading
        """,
    ),
    "what shrinking has promised and not kept is evicted": (
        policy(),
        (ModelSpec("A", 5, 2), ModelSpec("B", 4), ModelSpec("C", 3)),
        """
        0 load A         -> load A
        1 ready A 5      ->
        1 load B         -> load B
        2 ready B 1      ->
        9 request 1 C    -> limits A 0, wait 1 room
        10 footprint A 5 -> stop A evicted
        11 exit A        -> load C, wait 1 loading
        """,
    ),
    "shrinking takes no more caches than it needs, and none when it is not enough": (
        policy(),
        (ModelSpec("A", 4, 1), ModelSpec("B", 5, 3), ModelSpec("C", 4), ModelSpec("D", 6)),
        """
        0 load A          -> load A
        1 ready A 4       ->
        1 load B          -> load B
        2 ready B 5       ->
        9 request 1 C     -> limits B 0, wait 1 room
        10 footprint B 2  -> load C, wait 1 loading
        11 ready C 4      -> grant 1 C
        12 request 2 D    -> stop A evicted, stop B evicted, wait 2 room
        """,
    ),
    "pinned models and models in use keep their caches in contention": (
        policy(),
        (ModelSpec("A", 5, 2, pin=True), ModelSpec("B", 5, 2), ModelSpec("C", 2)),
        """
        0 load A      -> load A
        1 ready A 5   ->
        1 request 1 B -> load B, wait 1 loading
        2 ready B 5   -> grant 1 B
        9 request 2 C -> wait 2 room
        """,
    ),
    "two that wait do not count on one cache": (
        policy(),
        (ModelSpec("A", 6, 3), ModelSpec("B", 4), ModelSpec("C", 3), ModelSpec("D", 3)),
        """
        0 load A         -> load A
        1 ready A 6      ->
        1 load B         -> load B
        2 ready B 4      ->
        9 request 1 C    -> limits A 0, wait 1 room
        9 request 2 D    -> wait 2 room
        10 footprint A 3 -> load C, wait 1 loading
        11 ready C 3     -> grant 1 C, stop A evicted
        12 exit A        -> load D, wait 2 loading
        """,
    ),
    "stranded memory counts for a minute": (
        policy(),
        BIG,
        """
        0 load A      -> load A
        1 ready A 7   ->
        2 unload A    -> stop A requested
        3 exit A 4    ->
        50 request 1 B -> wait 1 room
        63 tick       -> load B, wait 1 loading
        """,
    ),
    "stranded memory that has come back is free": (
        policy("fail"),
        BIG,
        """
        0 load A        -> load A
        1 crash A x 4   ->
        2 request 1 B   -> reject 1 no_capacity
        3 reclaim A 1   ->
        4 request 2 B   -> reject 2 no_capacity
        5 reclaim A 9   ->
        6 reclaim A 9   ->
        6 request 3 B   -> load B, wait 3 loading
        """,
    ),
    "what a removed model has stranded can still be reclaimed": (
        policy(),
        BIG,
        """
        0 load A      -> load A
        1 reload B P  -> cancel-load A
        2 fail A x 8  -> forget A
        3 request 1 B -> wait 1 room
        4 reclaim A 6 -> load B, wait 1 loading
        """,
    ),
    "a restarted preload waits for what its old process has stranded": (
        policy(),
        BIG,
        """
        0 load A free-room -> load A
        1 ready A 7        ->
        2 reload A! B P    -> stop A reload
        3 exit A 5         ->
        63 tick            -> load A
        """,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    check(STORIES[name])
