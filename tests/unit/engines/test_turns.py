"""When an engine asks for a turn, and when it gives one back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines import wire
from engines.base import Emitted
from engines.scripted import ScriptedEngine
from engines.turns import LONG, PrefillTurn
from gateway.supervisor.turns import Turns
from tests.unit.engines.scripted_bench import LIMITS, FakeMachine

WANT, OVER = wire.WantTurn(LONG), wire.TurnOver()


class Made:
    """A turn, and what it said."""

    def __init__(self) -> None:
        self.said: list[wire.WantTurn | wire.TurnOver] = []
        self.turn = PrefillTurn(self.said.append)


def test_a_short_prompt_needs_no_turn() -> None:
    made = Made()
    assert made.turn.ready(1, LONG - 1)
    made.turn.over(1)
    assert made.said == []


def test_a_long_prompt_waits_for_its_turn_and_gives_it_back() -> None:
    made = Made()
    assert not made.turn.ready(1, LONG)
    assert not made.turn.ready(1, LONG)
    assert made.turn.ready(2, 5)
    assert made.said == [WANT]
    made.turn.take()
    assert made.turn.ready(1, LONG)
    made.turn.over(2)
    assert made.said == [WANT]
    made.turn.over(1)
    assert made.said == [WANT, OVER]


def test_one_prompt_at_a_time() -> None:
    made = Made()
    made.turn.ready(1, LONG)
    made.turn.take()
    assert not made.turn.ready(2, LONG)
    made.turn.over(1)
    assert not made.turn.ready(2, LONG)
    assert made.said == [WANT, OVER, WANT]
    made.turn.take()
    assert made.turn.ready(2, LONG)


def test_who_waits_no_more_gives_its_place_back() -> None:
    made = Made()
    made.turn.ready(1, LONG)
    made.turn.over(1)
    assert made.said == [WANT, OVER]
    made.turn.take()  # it was on its way
    assert made.turn.holder is None
    assert not made.turn.ready(2, LONG)
    assert made.said == [WANT, OVER, WANT]


def test_a_turn_on_its_way_serves_the_next_who_wants_one() -> None:
    made = Made()
    made.turn.ready(1, LONG)
    made.turn.over(1)
    assert not made.turn.ready(2, LONG)
    made.turn.take()
    assert made.turn.ready(2, LONG)
    made.turn.take()  # its own
    made.turn.over(2)
    assert made.turn.holder is None


class Party:
    """An engine, and what is on its way to the gateway and back."""

    def __init__(self) -> None:
        self.to_gateway: list[wire.WantTurn | wire.TurnOver] = []
        self.turns = 0
        self.turn = PrefillTurn(self.to_gateway.append)
        self.wanting: int | None = None

    def ready(self, call_id: int) -> None:
        if self.turn.ready(call_id, LONG) or self.wanting is None:
            self.wanting = call_id

    def over(self, call_id: int) -> None:
        self.turn.over(call_id)
        if self.wanting == call_id:
            self.wanting = None


class Both:
    """A gateway and two engines, whose messages arrive when the test says so."""

    def __init__(self) -> None:
        self.gateway = Turns(1)
        self.parties = {"a": Party(), "b": Party()}

    def hear_engine(self, name: str) -> None:
        for message in self.parties[name].to_gateway[:1]:
            del self.parties[name].to_gateway[0]
            wants = isinstance(message, wire.WantTurn)
            act = self.gateway.want if wants else self.gateway.over
            for granted in act(0, name):
                self.parties[granted.name].turns += 1

    def hear_gateway(self, name: str) -> None:
        if self.parties[name].turns:
            self.parties[name].turns -= 1
            self.parties[name].turn.take()

    def hear_all(self) -> None:
        while any(party.to_gateway or party.turns for party in self.parties.values()):
            for name in self.parties:
                self.hear_engine(name)
                self.hear_gateway(name)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["ready", "over", "hear engine", "hear gateway"]),
        st.integers(0, 2),
    ),
    max_size=100,
)


@given(EVENTS)
def test_however_messages_cross_gateway_and_engines_agree_in_the_end(
    events: list[tuple[str, str, int]],
) -> None:
    both = Both()
    for name, what, call_id in events:
        if what == "ready":
            both.parties[name].ready(call_id)
        elif what == "over":
            both.parties[name].over(call_id)
        elif what == "hear engine":
            both.hear_engine(name)
        else:
            both.hear_gateway(name)
    both.hear_all()
    view = both.gateway.view()
    for name, party in both.parties.items():
        assert (name in view.holding + view.waiting) == (party.wanting is not None)
        assert name not in view.holding or party.turn.holder == party.wanting


# --- the scripted engine --------------------------------------------------------------------------


class Acting:
    """A scripted engine whose prompts take a second, and what it said."""

    def __init__(self) -> None:
        self.said: list[Emitted] = []
        self.machine = FakeMachine()
        spec = wire.EngineSpec("m", "scripted", scripted={"prefill_s": 1, "deltas": 1})
        self.engine = ScriptedEngine(spec, LIMITS, self.said.append, self.machine)

    def submit(self, call_id: int, prompt_tokens: int) -> None:
        self.engine.submit(wire.Generate(call_id, prompt=" ".join(["x"] * prompt_tokens)))

    def run(self) -> list[str]:
        """Until there is nothing to do; what was said of turns, and who was served."""
        self.said.clear()
        for _ in range(1000):
            if not self.engine.busy:
                kinds = (wire.WantTurn, wire.TurnOver, wire.Finished, wire.Failed)
                return [name_of(event) for event in self.said if isinstance(event, kinds)]
            self.engine.step()
        raise AssertionError("the engine never came to rest")


def name_of(event: Emitted) -> str:
    name = type(event).__name__
    return f"{name} {event.id}" if isinstance(event, wire.Finished | wire.Failed) else name


def test_short_calls_go_on_while_long_ones_wait() -> None:
    acting = Acting()
    acting.submit(1, LONG)
    acting.submit(2, LONG)
    acting.submit(3, 10)
    assert acting.run() == ["WantTurn", "Finished 3"]
    assert (acting.engine.busy, acting.engine.running) == (False, 2)
    acting.engine.take_turn()
    assert acting.run() == ["TurnOver", "WantTurn", "Finished 1"]
    before = acting.machine.time
    acting.engine.take_turn()
    assert acting.run() == ["TurnOver", "Finished 2"]
    assert acting.machine.time > before + 0.99  # the wait before it saved no time


def test_cancelled_while_it_waits_and_while_it_has_its_turn() -> None:
    acting = Acting()
    acting.submit(1, LONG)
    acting.submit(2, LONG)
    assert acting.run() == ["WantTurn"]
    acting.engine.cancel(1)
    assert [name_of(event) for event in acting.said[-2:]] == ["TurnOver", "Failed 1"]
    assert acting.run() == ["WantTurn"]  # for the other one
    acting.engine.take_turn()
    acting.engine.step()
    acting.engine.cancel(2)
    assert [name_of(event) for event in acting.said[-2:]] == ["TurnOver", "Failed 2"]
