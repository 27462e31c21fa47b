"""A broker that keeps its place: its heartbeats go on, whatever its storage answers."""

import asyncio
from collections.abc import Callable

import structlog

from headrace.broker.brokers.membership import Membership
from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable

ME = Member(node_id=1, incarnation="a", process="pid 1", host="here", port=9092)


class Storage:
    """A cluster membership with one broker; a heartbeat that fails unexpectedly."""

    def __init__(self) -> None:
        self.view: View | None = None
        self.beats = 0
        self.away = False

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        self.beats += 1
        if self.away:
            raise StorageUnavailable("Redis does not answer")
        if self.beats == 4:
            raise AttributeError("a library's client did not know the node")
        return self.view, {}, "0-0"

    async def change(self, proposal: Proposal) -> View:
        self.view = View(proposal.before + 1, proposal.members, proposal.before)
        return self.view

    def enter(self, number: int) -> None:
        pass


async def test_an_unexpected_failure_does_not_end_the_heartbeats() -> None:
    storage, clock = Storage(), ManualClock()
    broker = Membership(storage, ME, clock, session_ms=3_000, interval_ms=300)  # type: ignore[arg-type]
    await broker.join(lambda _: None)
    broker.start()
    while storage.beats < 8:
        clock.advance(300)
        await asyncio.sleep(0)
    assert broker.is_member
    await broker.leave()


async def test_a_single_broker_verifies_its_membership_after_a_pause() -> None:
    """Another broker may have joined. While Redis does not answer, none can."""
    storage, clock = Storage(), ManualClock()
    broker = Membership(storage, ME, clock, session_ms=3_000, interval_ms=300)  # type: ignore[arg-type]
    await broker.join(lambda _: None)
    broker.start()

    async def beat() -> None:
        beats = storage.beats
        while storage.beats == beats:
            clock.advance(300)
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    await beat()
    assert broker.certain
    clock.advance(3_600_000)
    assert not broker.certain
    await beat()
    assert broker.certain
    storage.away = True
    await beat()
    clock.advance(3_600_000)
    assert broker.certain
    storage.away = False
    await broker.leave()


async def test_a_broker_whose_machine_slept_is_certain_of_nothing_until_it_has_asked() -> None:
    """The clock of its timers was paused, those of the others were not."""
    storage, clock = Storage(), ManualClock()
    broker = Membership(storage, ME, clock, session_ms=3_000, interval_ms=300)  # type: ignore[arg-type]
    await broker.join(lambda _: None)
    broker.start()
    assert storage.view is not None
    other = Member(node_id=2, incarnation="b", process="pid 2", host="here", port=9093)
    for members in ((ME,), (ME, other)):
        storage.view = View(storage.view.number + 1, members)
        beats = storage.beats
        while storage.beats < beats + 2 or not broker.certain:
            clock.advance(300)
            await asyncio.sleep(0)
        clock.sleep(3_600_000)
        assert not broker.certain
    await broker.leave()


async def test_who_cannot_leave_says_why() -> None:
    """A Redis that is stopped raises nothing that has words."""
    storage, clock = Storage(), ManualClock()
    broker = Membership(storage, ME, clock, session_ms=10, interval_ms=5)  # type: ignore[arg-type]
    await broker.join(lambda _: None)

    async def unanswered(proposal: Proposal) -> View:
        await asyncio.Event().wait()
        raise AssertionError

    storage.change = unanswered  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as told:
        await broker.leave()
    assert [each["reason"] for each in told if each["event"].startswith("could not leave")] == ["Redis takes too long"]


class Redis:
    """The view and the counters that brokers share."""

    def __init__(self) -> None:
        self.view: View | None = None
        self.counters: dict[tuple[int, str], int] = {}


class Place:
    """One broker's storage, with the broker epochs that it received."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.entered: list[int] = []

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        self.redis.counters[me.node_id, me.incarnation] = counter
        return self.redis.view, dict(self.redis.counters), "0-0"

    async def change(self, proposal: Proposal) -> View:
        found = self.redis.view
        if found is None or found.number == proposal.expected:
            found = self.redis.view = View(proposal.before + 1, proposal.members, proposal.before)
        return found

    def enter(self, number: int) -> None:
        self.entered.append(number)


async def test_a_broker_that_was_stopped_for_an_hour_says_so_and_joins_again() -> None:
    """SIGSTOP: its clock continues, but nothing runs. It is uncertain, and misses no broker."""
    redis = Redis()
    other_me = Member(node_id=2, incarnation="b", process="pid 2", host="here", port=9093)
    stopped_clock, clock = ManualClock(), ManualClock()
    stopped_place, place = Place(redis), Place(redis)
    stopped = Membership(stopped_place, ME, stopped_clock, session_ms=3_000, interval_ms=500)  # type: ignore[arg-type]
    other = Membership(place, other_me, clock, session_ms=3_000, interval_ms=500)  # type: ignore[arg-type]
    for each in (stopped, other):
        await each.join(lambda _: None)
        each.start()

    async def until(happened: Callable[[], bool], *clocks: ManualClock) -> None:
        for _ in range(20_000):
            if happened():
                return
            for each in clocks:
                each.advance(500)
            for _ in range(5):
                await asyncio.sleep(0)
        raise AssertionError("it did not come to that")

    await until(lambda: all(each.view is not None and len(each.view.members) == 2 for each in (stopped, other)),
                stopped_clock, clock)  # fmt: skip
    began_ms = clock.ticks_ms()
    with structlog.testing.capture_logs() as logged:
        await until(lambda: clock.ticks_ms() >= began_ms + 3_600_000, clock)
    assert redis.view is not None
    [dead] = [line for line in logged if line["log_level"] == "warning"]
    assert dead["event"].startswith("broker declared dead: its heartbeats have stopped")
    assert (dead["node"], dead["address"], dead["process"]) == (1, "here:9092", "pid 1")
    assert 3.0 <= dead["seconds"] < 5
    assert (dead["others"], dead["view"]) == ([2], redis.view.number)
    assert [member.node_id for member in redis.view.members] == [2]
    assert other.certain
    alone = redis.view.number

    with structlog.testing.capture_logs() as logged:
        stopped_clock.advance(3_600_000)
        assert not stopped.certain
        await until(lambda: stopped.certain and redis.view is not None and redis.view.number > alone,
                    stopped_clock, clock)  # fmt: skip
        await until(lambda: other.view == redis.view, stopped_clock, clock)

    assert [(line["event"], line["node"], line["address"]) for line in logged if "node" in line] == [
        ("a broker that was declared dead has rejoined", 1, "here:9092")
    ]
    told = [(line["event"], line.get("seconds")) for line in logged if line["log_level"] == "warning"]
    assert told[0][0].startswith("this broker sent no heartbeat for longer than its session timeout")
    assert told[0][1] is not None
    assert 3_600 <= told[0][1] < 3_610
    assert [event for event, _ in told[1:]] == [
        "the other brokers have declared this broker dead: it leads no partitions until it rejoins"
    ]
    assert [member.node_id for member in redis.view.members] == [1, 2]
    assert alone not in stopped_place.entered, "it has written nothing under the view that it was not in"
    for each in (stopped, other):
        await each.leave()
