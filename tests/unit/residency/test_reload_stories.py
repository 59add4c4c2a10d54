"""What a new registry does to models at work. Sizes are bytes, the budget is 10."""

from __future__ import annotations

import pytest

from gateway.residency import ModelSpec
from tests.unit.residency.stories import BIG, CACHED, SMALL, Story, check, policy

STORIES: dict[str, Story] = {
    "a registry that is the same changes nothing": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 reload A B P ->
        2 ready A 7    -> grant 1 A
        3 reload A B P ->
        4 release 1    ->
        5 reload A B P ->
        """,
    ),
    "a removed model finishes its calls, refuses all others, and is forgotten when reaped": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1), ModelSpec("B", 8)),
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 A -> wait 2 room
        3 reload B    -> reject 2 model_not_found
        4 request 3 A -> reject 3 model_not_found
        5 request 4 B -> wait 4 room
        6 release 1   -> stop A reload
        7 exit A      -> forget A, load B, wait 4 loading
        8 ready B 7   -> grant 4 B
        """,
    ),
    "the calls of a removed model may take drain_max_s, however often the file is saved": (
        policy(drain_max_s=7),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 reload B P  ->
        8 reload B P  ->
        9 tick        -> end A 1 preempted
        9 release 1   -> stop A reload
        10 exit A     -> forget A
        """,
    ),
    "the load of a removed model is cancelled": (
        policy(),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 reload B P  -> reject 1 model_not_found, cancel-load A
        1 ready A 7   ->
        1 footprint A 7 ->
        2 exit A      -> forget A
        """,
    ),
    "a removed model without a process is forgotten at once, and so is the wish for it": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 load B       ->
        2 request 2 B  -> wait 2 room
        3 reload A P X=2 -> reject 2 model_not_found, forget B
        4 request 3 X  -> wait 3 room
        5 ready A 7    -> grant 1 A, load X, wait 3 loading
        """,
    ),
    "a crash of a removed model is the end of it": (
        policy(),
        BIG,
        """
        0 request 1 A       -> load A, wait 1 loading
        1 ready A 7         -> grant 1 A
        2 reload B P        ->
        3 crash A SIGABRT   -> forget A
        """,
    ),
    "a name that comes back waits until its old process is reaped": (
        policy(),
        BIG,
        """
        0 request 1 A    -> load A, wait 1 loading
        1 ready A 7      -> grant 1 A
        2 reload B P     ->
        3 reload A=5 B P ->
        4 request 2 A    -> wait 2 room
        5 release 1      -> stop A reload
        6 exit A         -> load A, wait 2 loading
        7 ready A 4      -> grant 2 A
        """,
    ),
    "what loads is removed, comes back and loads again only when somebody wants it": (
        policy(),
        BIG,
        """
        0 load A       -> load A
        1 reload B P   -> cancel-load A
        2 reload A B P ->
        3 exit A       ->
        4 request 1 A  -> load A, wait 1 loading
        """,
    ),
    "whoever had room made by a removed model gets it; who made room for one does not leave": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 B -> wait 2 room
        3 reload A P  -> reject 2 model_not_found, forget B
        4 request 3 A -> grant 3 A
        """,
    ),
    "a restarted model finishes its calls while new requests wait for its new process": (
        policy(),
        BIG,
        """
        0 request 1 A     -> load A, wait 1 loading
        1 ready A 7       -> grant 1 A
        2 reload A=6! B P ->
        3 request 2 A     -> wait 2 room
        4 release 1       -> stop A reload
        5 exit A          -> load A, wait 2 loading
        6 ready A 5       -> grant 2 A
        """,
    ),
    "the queue of a restarted model is not filled by the calls of its old process": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1, max_queue=0),),
        """
        0 request 1 A -> load A, wait 1 loading
        1 ready A 7   -> grant 1 A
        2 request 2 A -> reject 2 queue_full
        3 reload A!   ->
        4 request 3 A -> wait 3 room
        5 request 4 A -> reject 4 queue_full
        """,
    ),
    "an idle model that is restarted leaves at once and comes back when it is wanted": (
        policy(),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 release 1     ->
        3 reload A! B P -> stop A reload
        4 exit A        ->
        5 request 2 A   -> load A, wait 2 loading
        """,
    ),
    "what was loaded on request is loaded again, into free room only": (
        policy(),
        SMALL,
        """
        0 load R              -> load R
        1 ready R 3           ->
        2 reload R=5! S T U   -> stop R reload
        3 exit R              -> load R
        4 ready R 5           ->
        5 request 1 S         -> load S, wait 1 loading
        6 ready S 3           -> grant 1 S
        7 reload R=8! S T U   -> stop R reload
        8 exit R              ->
        """,
    ),
    "a pinned model is loaded again": (
        policy(),
        BIG,
        """
        0 request 1 P   -> load P, wait 1 loading
        1 ready P 1     -> grant 1 P
        2 reload A B P! ->
        3 release 1     -> stop P reload
        4 exit P        -> load P
        """,
    ),
    "a load under way begins again, and its time is no waiting time": (
        policy(),
        BIG,
        """
        0 request 1 A      -> load A, wait 1 loading
        40 reload A=6! B P -> cancel-load A, wait 1 room
        41 exit A          -> load A, wait 1 loading
        99 ready A 5       -> grant 1 A
        """,
    ),
    "a restarted model that was chosen to leave leaves, and no later": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 request 2 B   -> wait 2 room
        3 reload A! B P ->
        3 leave 2       ->
        4 tick          -> end A 1 preempted
        5 release 1     -> stop A reload
        """,
    ),
    "calls that were ended already are not ended again": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 request 2 B   -> wait 2 room
        4 tick          -> end A 1 preempted
        5 reload A! B P ->
        6 release 1     -> stop A reload
        7 exit A        -> load B, wait 2 loading
        """,
    ),
    "a pin goes with the entry": (
        policy(),
        (ModelSpec("A", 8, ttl_s=5), ModelSpec("B", 1)),
        """
        0 load A     -> load A
        1 ready A 7  ->
        2 pin A      ->
        3 reload B   -> stop A reload
        4 reload A B ->
        5 exit A     ->
        6 load A     -> load A
        7 ready A 1  ->
        12 tick      -> stop A ttl
        """,
    ),
    "a removal, a renaming and a change at once, with one model loading": (
        policy(),
        (ModelSpec("A", 4), ModelSpec("B", 2), ModelSpec("C", 2)),
        """
        0 load B                  -> load B
        0 request 1 A             -> wait 1 room
        1 ready B 2               -> load A, wait 1 loading
        1 reload A B C            ->
        5 ready A 4               -> grant 1 A
        6 reload B2=2 C!          -> stop B reload
        6.1 load B2 free-room     -> load B2
        6.5 request 2 A           -> reject 2 model_not_found
        6.5 request 3 B2          -> wait 3 loading
        7 exit B                  -> forget B
        7.1 reload B2 C           ->
        7.2 ready B2 2            -> grant 3 B2
        7.5 release 3             ->
        8.5 request 4 C           -> load C, wait 4 loading
        9 release 1               -> stop A reload
        10.5 ready C 2            -> grant 4 C
        11 exit A                 -> forget A
        14 unload B2              -> stop B2 requested
        14.05 request 5 B2        -> wait 5 room
        15 exit B2                -> load B2, wait 5 loading
        """,
    ),
    "a fault is forgiven when its model changes": (
        policy(),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 fail A x      -> reject 1 load_failed
        1 request 2 A   -> load A, wait 2 loading
        2 fail A x      -> reject 2 load_failed
        3 request 3 A   -> reject 3 load_failed
        4 reload A! B P ->
        5 request 4 A   -> load A, wait 4 loading
        6 fail A x      -> reject 4 load_failed
        6 request 5 A   -> load A, wait 5 loading
        """,
    ),
    "a fault of the old process is none of the new one": (
        policy(),
        BIG,
        """
        0 request 1 A     -> load A, wait 1 loading
        1 ready A 7       -> grant 1 A
        2 reload A! B P   ->
        3 request 2 A     -> wait 2 room
        4 crash A SIGABRT -> load A, wait 2 loading
        5 fail A x        -> reject 2 load_failed
        6 request 3 A     -> load A, wait 3 loading
        """,
    ),
    "a preload that has failed is tried again when it is restarted": (
        policy(),
        BIG,
        """
        0 load A        -> load A
        1 fail A x      ->
        2 reload A! B P -> load A
        """,
    ),
    "limits that change while it is ready are charged and told": (
        policy(),
        CACHED,
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 4        -> grant 1 A
        2 request 2 B      -> load B, wait 2 loading
        3 ready B 2        -> grant 2 B
        4 request 3 C      -> wait 3 room
        5 reload A=5/1 B C -> limits A 1
        6 reload A=5/1 B=2/1 C -> limits B 1, load C, wait 3 loading
        """,
    ),
    "limits that change during a load hold from its end": (
        policy(),
        CACHED,
        """
        0 request 1 A      -> load A, wait 1 loading
        1 reload A=4/1 B C ->
        2 request 2 C      -> wait 2 room
        3 request 3 B      -> wait 3 room
        4 ready A 4        -> limits A 1, grant 1 A, load C, wait 2 loading
        5 ready C 3        -> grant 2 C
        """,
    ),
    "larger limits than there is room are an overrun": (
        policy(),
        CACHED,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 4     -> grant 1 A
        2 request 2 B   -> load B, wait 2 loading
        3 ready B 3     -> grant 2 B
        4 release 2     ->
        5 reload A=8 B C -> limits A 0, limits B 0, stop B overrun
        """,
    ),
    "a smaller budget is answered like an overrun, a larger one lets in who waits": (
        policy(),
        SMALL,
        """
        0 request 1 R             -> load R, wait 1 loading
        1 ready R 3               -> grant 1 R
        2 request 2 S             -> load S, wait 2 loading
        3 ready S 3               -> grant 2 S
        4 release 2               ->
        5 reload R S T U budget=6 -> stop S overrun
        6 exit S                  ->
        7 request 3 U             -> wait 3 room
        8 reload R S T U budget=10 -> load U, wait 3 loading
        """,
    ),
    "who can never be served under the new budget is refused at once": (
        policy(),
        BIG,
        """
        0 request 1 A         -> load A, wait 1 loading
        1 ready A 7           -> grant 1 A
        2 request 2 B         -> wait 2 room
        3 load B              ->
        4 reload A B P budget=7 -> reject 2 model_too_large
        5 request 3 A         -> reject 3 model_too_large
        6 release 1           -> stop A overrun
        """,
    ),
    "a new time-out counts from the arrival": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        3 request 3 B  -> wait 3 room
        12 reload A B P wait_timeout_s=10 -> reject 2 no_capacity
        13 tick        -> reject 3 no_capacity
        """,
    ),
    "a new max_wait_s holds for those who wait": (
        policy(),
        (ModelSpec("A", 8, max_concurrency=1),),
        """
        0 request 1 A      -> load A, wait 1 loading
        1 ready A 7        -> grant 1 A
        2 request 2 A low  -> wait 2 room
        3 request 3 A high -> wait 3 room
        4 reload A max_wait_s=2 ->
        5 release 1        -> grant 2 A
        """,
    ),
    "a new strategy holds for those who wait": (
        policy(),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        3 reload A B P strategy=fail -> reject 2 no_capacity
        """,
    ),
    "a new strategy that does not preempt calls a preemption off": (
        policy("preempt"),
        BIG,
        """
        0 request 1 A  -> load A, wait 1 loading
        1 ready A 7    -> grant 1 A
        2 request 2 B  -> wait 2 room
        3 reload A B P strategy=wait ->
        4 tick         ->
        5 request 3 A  -> grant 3 A
        """,
    ),
    "files that go missing are no reason to stop what runs, but the last of it": (
        policy(),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 ready A 7     -> grant 1 A
        2 reload A? B P ->
        3 request 2 A   -> grant 2 A
        4 release 1     ->
        5 release 2     ->
        6 request 3 B   -> stop A evicted, wait 3 room
        6 request 4 A   -> reject 4 model_unavailable
        7 exit A        -> load B, wait 3 loading
        8 request 5 A   -> reject 5 model_unavailable
        9 reload A B P  ->
        10 request 6 A  -> wait 6 room
        """,
    ),
    "whoever waits for a model that becomes unavailable is told": (
        policy(),
        BIG,
        """
        0 request 1 A   -> load A, wait 1 loading
        1 request 2 B   -> wait 2 room
        2 reload A B? P -> reject 2 model_unavailable
        3 reload A! B P -> cancel-load A, wait 1 room
        4 reload A? B P -> reject 1 model_unavailable
        5 exit A        ->
        6 request 3 A   -> reject 3 model_unavailable
        """,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_story(name: str) -> None:
    check(STORIES[name])
