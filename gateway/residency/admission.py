"""Which cold models load now, and what leaves for them.

One pass walks the models that somebody waits for, in the order of their first waiter, and keeps
account of the room that those ahead have claimed. So a later model may use what is free only if
that does not delay an earlier one whose room is on its way; an earlier one that is blocked for an
unknown time claims nothing until it starves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.residency import refusals
from gateway.residency.core import Core, Hold
from gateway.residency.eviction import Need, Victim, choose, choose_in_turn
from gateway.residency.slot import Drain, Slot
from gateway.residency.states import COLD, LEAVING, State
from gateway.residency.waiters import Waiter


@dataclass(slots=True)
class _Line:
    """The pass so far: what those ahead have claimed, and which models will leave for them."""

    core: Core
    now: float
    load_slots: int
    previous_hold: Hold | None
    claimed_bytes: int = 0
    claimed_engines: int = 0
    taken: set[str] = field(default_factory=set)
    promised: set[str] = field(default_factory=set)
    """Idle models whose prompt caches are to go once there is a load slot to use the room."""

    def shortage(self, charge: int) -> Need:
        """What is missing for one more model after all that leaves and all that was claimed."""
        core = self.core
        alive = list(core.alive())
        returning = [s for s in alive if s.state in LEAVING or s.name in self.taken]
        back = sum(core.ledger.charge(slot.name) for slot in returning)
        back += sum(self.returning(slot) for slot in alive if slot not in returning)
        engines = len(alive) - len(returning) + self.claimed_engines + 1
        return Need(
            charge + self.claimed_bytes - core.ledger.free - back,
            engines - core.policy.max_engines,
        )

    def returning(self, slot: Slot) -> int:
        """Bytes of its prompt cache that come back although it stays."""
        if slot.name in self.promised:
            return slot.life.prompt_cache_bytes
        return slot.returning_bytes

    def claim(self, charge: int, victims: list[Victim]) -> None:
        self.claimed_bytes += charge
        self.claimed_engines += 1
        self.taken.update(victim.name for victim in victims)

    def candidates(self, wanted: Callable[[Slot], bool]) -> list[Slot]:
        return [
            slot
            for slot in self.core.slots.values()
            if not slot.pinned and slot.name not in self.taken and wanted(slot)
        ]

    def victims(self, slots: list[Slot]) -> list[Victim]:
        charge = self.core.ledger.charge
        return [Victim(slot.name, charge(slot.name) - self.returning(slot)) for slot in slots]


def admit(core: Core, now: float) -> None:
    """Start what fits, make room for what can have it, refuse what the policy refuses.

    A refusal may change whose turn it is, and a shrunk cache what is free: then the walk begins
    again.
    """
    previous_hold = core.hold
    while not _walk(core, now, previous_hold):
        pass


def _walk(core: Core, now: float, previous_hold: Hold | None) -> bool:
    """Whether it came to its end."""
    waiting = [
        (head, slot)
        for slot in core.slots.values()
        if slot.state in COLD and (head := core.demand(slot, now)) is not None
        if slot.state is not State.FAILED or now >= slot.failed_until
    ]
    waiting.sort(key=lambda pair: _turn(core, now, *pair))
    loading = sum(1 for slot in core.alive() if slot.state is State.LOADING)
    line = _Line(core, now, core.policy.load_concurrency - loading, previous_hold)
    core.hold = None
    for head, slot in waiting:
        if core.pressure != "normal":
            _refuse_if_failing(line, slot)
        elif not _place(line, slot, head):
            return False
    return True


def drop_stale_hold(core: Core) -> None:
    """The starved waiters have been served or have left: their victims serve again."""
    hold = core.hold
    if hold is not None:
        slot = core.slots.get(hold.beneficiary)
        if slot is None or slot.state not in COLD or not core.queue.count(slot.name):
            core.hold = None


def _turn(core: Core, now: float, head: Waiter, slot: Slot) -> tuple[int, ...]:
    """Sort key. Who has room made for them keeps it: else a victim's own waiters take it back."""
    if slot.ticket is not None:
        return (0, slot.ticket)
    return (1, *head.rank(now, core.policy.max_wait_s))


def _place(line: _Line, slot: Slot, head: Waiter) -> bool:
    """Do what can be done for this model now; False when the walk has to begin again."""
    core = line.core
    charge = core.reservation(slot)
    need = line.shortage(charge)
    if need.met:
        if _may_start(line, slot, charge):
            core.start_load(line.now, slot)
        else:
            line.claim(charge, [])
        line.load_slots -= 1
        return True
    if _refuse_without_eviction(line, slot):
        return False
    if head.may_evict:
        caches = _enough_caches(line, need)
        if caches is None:
            _evict(line, slot, head, need)
        else:
            return _shrink(line, slot, caches)
    return True


def _refuse_without_eviction(line: _Line, slot: Slot) -> bool:
    """Whether there was anybody to refuse who may use free room only, when there is none."""
    core = line.core
    meek = [waiter for waiter in core.queue.of(slot.name) if not waiter.may_evict]
    # A wish has time to wait for memory that is stranded for no longer than a minute.
    if slot.wish is not None and not slot.wish.may_evict and not core.ledger.stranded:
        meek.append(slot.wish)
    for waiter in meek:
        core.reject(waiter, refusals.no_free_room(core, line.now, slot))
    return bool(meek)


def _enough_caches(line: _Line, need: Need) -> list[Victim] | None:
    """Prompt caches of idle models that make the room without anybody leaving."""
    if need.engines > 0:
        return None
    idle = line.candidates(lambda s: s.idle and not s.shrunk and s.name not in line.promised)
    idle.sort(key=lambda s: s.idle_since)
    caches = [Victim(s.name, s.life.prompt_cache_bytes) for s in idle]
    return choose([cache for cache in caches if cache.charge], need)


def _shrink(line: _Line, slot: Slot, caches: list[Victim]) -> bool:
    """Take the caches once a load could use the room; False when that has changed what is free."""
    core = line.core
    if line.load_slots <= 0:
        line.promised.update(cache.name for cache in caches)
        line.claim(core.reservation(slot), [])
        return True
    _take_ticket(core, slot)
    for cache in caches:
        core.shrink(core.slots[cache.name])
    return False


def _evict(line: _Line, slot: Slot, head: Waiter, need: Need) -> None:
    core = line.core
    victims = choose_in_turn(_free_of_charge(line, slot), need)
    if victims is None:
        _contend(line, slot, head, need)
        return
    cancelled = sum(core.slots[v.name].state is State.LOADING for v in victims)
    if line.load_slots + cancelled > 0:
        _make_room(line, slot, victims)
    line.claim(core.reservation(slot), victims)
    line.load_slots += cancelled - 1


def _may_start(line: _Line, slot: Slot, charge: int) -> bool:
    core = line.core
    return (
        slot.state in (State.UNLOADED, State.FAILED)
        and line.load_slots > 0
        and charge <= core.ledger.free
        and sum(1 for _ in core.alive()) < core.policy.max_engines
    )


def _free_of_charge(line: _Line, slot: Slot) -> list[list[Victim]]:
    """What may leave without contention: abandoned loads, then idle models nobody protects."""
    idle = line.candidates(lambda s: s.idle and line.core.settled(s, line.now))
    idle.sort(key=lambda s: s.idle_since)
    return [_abandoned(line, slot), line.victims(idle)]


def _abandoned(line: _Line, slot: Slot) -> list[Victim]:
    """Loads without a waiter, the youngest first; only a request may end what was asked for."""
    if not line.core.queue.count(slot.name):
        return []
    loads = line.candidates(line.core.abandoned)
    return line.victims(sorted(loads, key=lambda s: -s.loading_since))


def _contend(line: _Line, slot: Slot, head: Waiter, need: Need) -> None:
    """What would have to leave is in use, or was loaded a moment ago: the policy decides."""
    core = line.core
    if _refuse_if_failing(line, slot) or _preempt(line, slot, need):
        return
    if core.hold is None and head.starved(line.now, core.policy.max_wait_s):
        victims = _hold_victims(line, slot, need)
        if victims is not None:
            core.hold = Hold(slot.name, frozenset(victim.name for victim in victims))
            line.claim(core.reservation(slot), victims)


def _refuse_if_failing(line: _Line, slot: Slot) -> bool:
    core = line.core
    if core.policy.strategy != "fail":
        return False
    core.reject_all(slot, refusals.no_capacity(core, line.now, slot, "at once"))
    return True


def _preempt(line: _Line, slot: Slot, need: Need) -> bool:
    """Make room at the cost of models in use, when the policy says that it is time."""
    core = line.core
    if line.load_slots <= 0 or not preemption_due(core, slot, line.now):
        return False
    idle = sorted(line.candidates(lambda s: s.idle), key=lambda s: s.idle_since)
    busy = sorted(line.candidates(lambda s: s.busy), key=Slot.importance)
    victims = choose_in_turn([_abandoned(line, slot), line.victims(idle + busy)], need)
    if victims is None:
        return False
    _make_room(line, slot, victims)
    line.claim(core.reservation(slot), victims)
    line.load_slots -= 1
    return True


def preemption_due(core: Core, slot: Slot, now: float) -> bool:
    """Whether a request for this model has waited as long as the policy lets victims go on."""
    waiters = core.queue.of(slot.name)
    if not waiters:
        return False
    if core.policy.strategy == "wait_then_preempt":
        return now >= waiters[0].arrived + core.policy.preempt_after_s
    return core.policy.strategy == "preempt"


def _hold_victims(line: _Line, slot: Slot, need: Need) -> list[Victim] | None:
    """Models that together make the room, the same as before as long as those still do."""
    previous = line.previous_hold
    if previous is not None and previous.beneficiary == slot.name:
        same = line.victims(line.candidates(lambda s: s.name in previous.victims and _in_use(s)))
        if need.less(same).met:
            return same
    idle = sorted(line.candidates(lambda s: s.idle), key=lambda s: s.idle_since)
    busy = sorted(line.candidates(lambda s: s.busy), key=Slot.importance)
    loading = line.candidates(lambda s: s.state is State.LOADING)
    return choose(line.victims(idle + busy + loading), need)


def _in_use(slot: Slot) -> bool:
    return slot.state in (State.LOADING, State.READY)


def _make_room(line: _Line, slot: Slot, victims: list[Victim]) -> None:
    core = line.core
    _take_ticket(core, slot)
    for name in (victim.name for victim in victims):
        victim = core.slots[name]
        if victim.state is State.LOADING:
            core.cancel_load(victim, f"room for {slot.name}")
        elif victim.idle:
            core.stop(victim, "evicted")
        else:
            at = line.now + core.policy.preempt_grace_s
            refusal = refusals.preempted(victim, slot.name)
            core.begin_drain(victim, Drain(at, "preempted", refusal, slot.name))


def _take_ticket(core: Core, slot: Slot) -> None:
    if slot.ticket is None:
        slot.ticket = core.next_seq()
