"""Faults, unloads, short memory, and what is refused. Sizes are bytes, the budget is 10."""

from __future__ import annotations

import pytest

from gateway.residency import ModelSpec, Priority
from tests.unit.residency.stories import BIG, CACHED, SMALL, Story, check, policy

STORIES: dict[str, Story] = {
    "a failed load is told to every waiter once, and its memory is back at once": (
        policy(),
        BIG,
        """
        0 request 1 A    -> load A, wait 1 loading
        0 request 2 A    -> wait 2 loading
        1 request 3 B    -> wait 3 room
        2 fail A no-file -> reject 1 load_failed, reject 2 load_failed, load B, wait 3 loading
        """,
    ),
    "back-off: the first failure may be retried at once, then 10 s, doubling": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 fail A x     -> reject 1 load_failed
        1 request 2 A  -> load A, wait 2 loading
        2 fail A x     -> reject 2 load_failed
        11 request 3 A -> reject 3 load_failed
        12 request 4 A -> load A, wait 4 loading
        13 fail A x    -> reject 4 load_failed
        32 request 5 A -> reject 5 load_failed
        33 request 6 A -> load A, wait 6 loading
        34 ready A 7   -> grant 6 A
        # A call that ends while the engine lives is the success that resets the series.
        35 release 6   ->
        36 crash A SIGABRT ->
        36 request 7 A -> load A, wait 7 loading
        """,
    ),
    "an operator's load ends the back-off": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 fail A x    -> reject 1 load_failed
        1 request 2 A -> load A, wait 2 loading
        2 fail A x    -> reject 2 load_failed
        3 load A      -> load A
        4 request 3 A -> wait 3 loading
        5 ready A 7   -> grant 3 A
        """,
    ),
    "a crash ends the leases, and the waiters cause a load under the back-off": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1),),
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 7        -> grant 1 A
        2 request 2 A      -> wait 2 room
        3 crash A SIGABRT  -> load A, wait 2 loading
        4 release 1        ->
        5 ready A 7        -> grant 2 A
        6 request 3 A      -> wait 3 room
        7 crash A SIGABRT  ->
        8 request 4 A      -> reject 4 load_failed
        17 tick            -> load A, wait 3 loading
        """,
    ),
    "TTL counts from the end of the last lease": (
        policy(),
        (ModelSpec("A", 8, ttl_s=10),),
        """
        0 request 1 A  -> load A, wait 1 loading
        50 ready A 7   -> grant 1 A
        90 release 1   ->
        99 request 2 A -> grant 2 A
        100 tick       ->
        101 release 2  ->
        110 tick       ->
        111 tick       -> stop A ttl
        112 exit A     ->
        """,
    ),
    "a pin outlives the TTL": (
        policy(),
        (ModelSpec("A", 8, ttl_s=10, pin=True),),
        """
        0 load A    -> load A
        1 ready A 7 ->
        99 tick     ->
        """,
    ),
    "what is asked during an unload waits for it and loads anew": (
        policy("fail"),
        BIG,
        """
        0 load P      -> load P
        1 ready P 1   ->
        2 unload P    -> stop P requested
        2 request 1 P -> wait 1 room
        3 exit P      -> load P, wait 1 loading
        """,
    ),
    "an unload gives running calls drain_max_s": (
        policy(drain_max_s=7),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 unload A    ->
        3 unload A    ->
        9 tick        -> end A 1 preempted
        9 release 1   -> stop A requested
        """,
    ),
    "an unload of a loading model tells its waiters": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 unload A    -> reject 1 preempted, cancel-load A
        2 exit A      ->
        """,
    ),
    "preloads follow each other and preempt nobody": (
        policy("preempt"),
        SMALL,
        """
        0 load R      -> load R
        0 load S      ->
        0 load U      ->
        1 ready R 1   -> load S
        2 ready S 1   ->
        3 request 1 R -> grant 1 R
        3 request 2 S -> grant 2 S
        29 tick       ->
        30 tick       ->
        31 release 1  ->
        """,
    ),
    "an overrun shrinks idle models, then stops them": (
        policy(),
        CACHED,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 5     -> grant 1 A
        1 request 2 B   -> load B, wait 2 loading
        2 ready B 3     -> grant 2 B
        3 release 2     ->
        4 footprint A 7 -> limits B 0
        5 footprint B 3 ->
        6 footprint A 8 -> stop B overrun
        7 exit B        ->
        """,
    ),
    "no more is stopped for an overrun than it takes": (
        policy(),
        (ModelSpec("A", 4), ModelSpec("B", 3), ModelSpec("C", 3)),
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 1     -> grant 1 A
        1 load B        -> load B
        2 ready B 1     ->
        2 load C        -> load C
        3 ready C 1     ->
        4 footprint A 6 -> stop B overrun
        5 footprint A 7 ->
        6 footprint A 8 -> stop C overrun
        """,
    ),
    "models in use are not stopped for an overrun, and nothing loads until it is over": (
        policy(),
        CACHED,
        """
        0 request 1 A    -> load A, wait 1 loading
        1 ready A 5      -> grant 1 A
        2 footprint A 12 ->
        3 request 2 C    -> wait 2 room
        4 footprint A 8  ->
        5 footprint A 7  -> load C, wait 2 loading
        """,
    ),
    "a shrunk model gets its prompt cache back when it is used and there is room": (
        policy(),
        CACHED,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 5     -> grant 1 A
        1 request 2 B   -> load B, wait 2 loading
        2 ready B 3     -> grant 2 B
        3 release 2     ->
        4 footprint A 7 -> limits B 0
        5 footprint B 3 ->
        6 request 3 B   -> grant 3 B
        7 footprint A 5 -> limits B 1
        """,
    ),
    "a shrunk model is not given back what somebody waits for": (
        policy(),
        (ModelSpec("A", 6), ModelSpec("B", 4, 2), ModelSpec("C", 3)),
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 5     -> grant 1 A
        1 load B        -> load B
        2 ready B 1     ->
        3 footprint A 8 -> limits B 0
        4 footprint B 1 ->
        5 request 2 B   -> grant 2 B
        6 request 3 C   -> wait 3 room
        7 footprint A 6 ->
        8 leave 3       -> limits B 2
        """,
    ),
    "warning pressure stops one model after the other": (
        policy(),
        (ModelSpec("B", 3), ModelSpec("C", 3)),
        """
        0 load B           -> load B
        1 ready B 1        ->
        1 load C           -> load C
        2 ready C 1        ->
        3 pressure warning -> stop B pressure
        4 tick             ->
        5 exit B           -> stop C pressure
        """,
    ),
    "critical pressure stops pinned models only after the others have gone": (
        policy(),
        (ModelSpec("B", 3), ModelSpec("P", 3, pin=True)),
        """
        0 load B            -> load B
        1 ready B 1         ->
        1 load P            -> load P
        2 ready P 1         ->
        3 pressure critical -> stop B pressure
        4 tick              ->
        4.5 exit B          ->
        5 tick              -> stop P pressure
        """,
    ),
    "warning pressure shrinks, then stops what is idle, and holds loads back": (
        policy(),
        CACHED,
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 5        -> grant 1 A
        1 request 2 B      -> load B, wait 2 loading
        2 ready B 3        -> grant 2 B
        3 release 2        ->
        4 pressure warning -> limits B 0
        4 pressure warning ->
        5 tick             -> stop B pressure
        6 exit B           ->
        7 request 3 B      -> wait 3 room
        8 pressure normal  -> load B, wait 3 loading
        """,
    ),
    "fail refuses under pressure": (
        policy("fail"),
        BIG,
        """
        0 pressure warning ->
        0 request 1 A      -> reject 1 no_capacity
        """,
    ),
    "critical pressure stops the idle, pinned ones last, then ends one busy model at a time": (
        policy(),
        (ModelSpec("A", 4), ModelSpec("B", 4), ModelSpec("P", 1, pin=True)),
        """
        0 request 1 A       -> load A, wait 1 loading
        1 ready A 3         -> grant 1 A
        1 request 2 B low   -> load B, wait 2 loading
        2 ready B 3         -> grant 2 B
        2 load P            -> load P
        3 ready P 1         ->
        4 pressure critical -> stop P pressure
        5 tick              ->
        5 exit P            ->
        6 tick              ->
        7 tick              ->
        8 tick              -> end B 2 preempted
        8 release 2         -> stop B pressure
        9 pressure normal   ->
        """,
    ),
    "what can never be served is refused at once": (
        policy(),
        (ModelSpec("A", 11), ModelSpec("B", 1, unavailable="folder /models/b is missing")),
        """
        0 request 1 A -> reject 1 model_too_large
        0 request 2 B -> reject 2 model_unavailable
        0 request 3 C -> reject 3 model_not_found
        0 load A      ->
        """,
    ),
    "what is unknown or over has no effect": (
        policy(),
        BIG,
        """
        0 leave 7       ->
        0 release 7     ->
        0 footprint A 9 ->
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 leave 1       ->
        3 release 1     ->
        3 release 1     ->
        """,
    ),
    "a model's own priority counts when the request names none": (
        policy(),
        (ModelSpec("A", 3), ModelSpec("B", 3), ModelSpec("C", 3, priority=Priority.HIGH)),
        """
        0 request 1 A -> load A, wait 1 loading
        0 request 2 B -> wait 2 room
        1 request 3 C -> wait 3 room
        2 ready A 1   -> grant 1 A, load C, wait 3 loading
        """,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    check(STORIES[name])
