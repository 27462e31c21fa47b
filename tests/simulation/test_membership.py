"""Simulate brokers that come, go, sleep and disagree over one Redis, from a seed, on a manual clock.

Each broker has its own monotonic clock, and its heartbeats, proposals, loads and saves take time. Brokers are killed,
stopped for a while (SIGSTOP), leave and join, some only for a moment. Neighbors notice a death, or wrongly assume one.
Redis is slow for all brokers, or returns with less data; its clock jumps. The rules:

- no two brokers ever persist a group under one epoch, and none persists under an epoch that is over
- no broker persists a group without knowing the writes of others, unless Redis has lost its takeover
- after a quiet period all brokers agree on the membership, which has exactly the live ones, and each group has exactly
  one owner
- in quiet periods, and while only Redis is slow, the membership does not change

To run one seed again: `simulate(seed)`.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TypeVar

import pytest
from tests.harness.simulations import run_many

from headrace.membership.participant import Counters, Participant, Proposal, Step
from headrace.membership.view import Member, Rendezvous, View

SESSION_MS, INTERVAL_MS = 3_000, 500
GROUPS = [f"default/group-{number}" for number in range(12)]
QUIET_MS = 20_000
T = TypeVar("T")


@cache
def owners(nodes: tuple[int, ...]) -> dict[str, int | None]:
    chosen = Rendezvous(nodes)
    return {group: chosen.choose(group) for group in GROUPS}


class World:
    """The time, and what is to happen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self._numbers = count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self.slow_until_ms = 0

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._numbers), call))

    def run_until(self, end_ms: int) -> None:
        while self._due and self._due[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._due)
            call()
        self.now_ms = end_ms

    def delay_ms(self) -> int:
        """What a request or an answer takes."""
        if self.now_ms < self.slow_until_ms:
            return self.slow_until_ms - self.now_ms + self.random.randrange(50)
        return self.random.choice([0, 1, 1, 2, 5, 20])


@dataclass
class Redis:
    """What the scripts do, each of them at once."""

    world: World
    view: View | None = None
    epoch: int = 0
    counters: dict[tuple[int, str], int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    clock_ms: int = 1_000_000
    changes: int = 0
    persisted: dict[tuple[str, int], str] = field(default_factory=dict)
    """(group, epoch) -> the only broker that may persist under it."""
    stored: dict[str, int] = field(default_factory=dict)
    """Group -> which write was the last one to it; 0: none."""
    made_from: dict[int, int] = field(default_factory=dict)
    """Write -> the last write that its author knew."""
    views: set[int] = field(default_factory=set)
    """Numbers of the views there were, but for those that were lost."""
    torn: set[str] = field(default_factory=set)
    """Groups that two brokers may own until a load under a surviving membership: their takeover was lost."""

    def change(self, proposal: Proposal, known: int) -> View | None:
        """Propose a change from a membership that the broker has adopted, perhaps one that is lost."""
        if (0 if self.view is None else self.view.number) == proposal.expected:
            self.epoch = max(self.epoch + 1, proposal.before + 1, self.clock_ms + self.world.now_ms)
            lost = proposal.before != proposal.expected
            self.view = View(self.epoch, proposal.members, 0 if lost else proposal.before)
            # If the proposer has not seen a membership in between, its takeovers are unknown.
            seen = max(proposal.expected, known)
            self.torn |= {group for group, epoch in self.fences.items() if epoch > seen}
            self.views.add(self.epoch)
            present = {(each.node_id, each.incarnation) for each in proposal.members}
            self.counters = {place: number for place, number in self.counters.items() if place in present}
            self.changes += 1
        return self.view

    def load(self, group: str, epoch: int) -> int | None:
        """load_group: fence brokers with an older epoch. Returns the last write to it, or None if rejected."""
        if not self._take(group, epoch):
            return None
        if epoch in self.views:
            self.torn.discard(group)
        return self.stored.get(group, 0)

    def _take(self, group: str, epoch: int) -> bool:
        if self.fences.get(group, 0) > epoch:
            return False
        self.fences[group] = epoch
        return True

    def save(self, group: str, epoch: int, who: str, known: int) -> int | None:
        """save_group, by a broker that knows all writes up to one: returns the number of this one; None: rejected."""
        if not self._take(group, epoch):
            return None
        assert self.persisted.setdefault((group, epoch), who) == who, f"two wrote to {group} under {epoch}"
        last, write = self.stored.get(group, 0), len(self.made_from) + 1
        self.made_from[write], self.stored[group] = known, write
        # It may know more, where Redis has lost some.
        while known != last and group not in self.torn:
            assert known, f"{who} wrote to {group} without knowing what another one had stored"
            known = self.made_from[known]
        return write

    def lose(self, view: View, fences: dict[str, int], stored: dict[str, int]) -> None:
        """A replica is promoted that has not got the last writes."""
        self.torn |= {group for group, epoch in self.fences.items() if epoch > fences.get(group, 0)}
        self.fences, self.stored = dict(fences), dict(stored)
        self.lose_view(view)

    def lose_view(self, view: View) -> None:
        """A replica is promoted where the view is, and groups are elsewhere."""
        self.view, self.epoch = view, view.number
        self.views = {number for number in self.views if number <= self.epoch}


class Broker:
    """Drives a participant as `broker.brokers.membership` does, and groups as `broker.coordinator.groups` does."""

    def __init__(self, world: World, redis: Redis, node_id: int, incarnation: int) -> None:
        self.world, self.redis = world, redis
        self.name = f"{node_id}.{incarnation}"
        me = Member(node_id=node_id, incarnation=self.name, process=self.name, host="here", port=9092 + node_id)
        self.mind = Participant(me, SESSION_MS, INTERVAL_MS)
        self.offset_ms = world.random.randrange(10**9)
        self.running = True
        self.stopped_until_ms = 0
        self.lost = ""
        self.held: dict[str, int] = {}
        """Group -> the epoch that it is held under."""
        self._known: dict[str, int] = {}
        """Group that is held -> the last write to it."""
        self._writing: set[str] = set()
        self._view: View | None = None
        """What it went by until it adopts the next one."""
        self._counter = 0
        self._beat()

    @property
    def clock_ms(self) -> int:
        return self.world.now_ms + self.offset_ms

    def _do(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Later, unless it has died; once it is awake, if it is stopped then."""

        def run() -> None:
            if not self.running:
                return
            if self.world.now_ms < self.stopped_until_ms:
                self.world.later(self.stopped_until_ms - self.world.now_ms, run)
            else:
                call()

        self.world.later(delay_ms, run)

    def _ask(self, command: Callable[[], T], answered: Callable[[T], None]) -> None:
        """A command is sent; it happens also where the broker is stopped or dead by then."""

        def happen() -> None:
            answer = command()
            self._do(self.world.delay_ms(), lambda: answered(answer))

        self.world.later(self.world.delay_ms(), happen)

    def _beat(self) -> None:
        self._counter += 1
        counter = self._counter
        self.mind.sent(self.clock_ms)

        def happen() -> tuple[View | None, Counters]:
            self.redis.counters[self.mind.me.node_id, self.mind.me.incarnation] = counter
            return self.redis.view, dict(self.redis.counters)

        def answered(answer: tuple[View | None, Counters]) -> None:
            self._take(self.mind.answered(self.clock_ms, *answer))
            if not self.lost and not (self.mind.leaving and not self.mind.is_member):
                self._do(INTERVAL_MS, self._beat)

        self._ask(happen, answered)

    def _take(self, step: Step) -> None:
        if step.lost:
            self.lost, self.running, self.held = step.lost, False, {}
            return
        if step.adopt is not None:
            self._adopt(step.adopt)
        if step.propose is not None:
            self._propose(step.propose)

    def _propose(self, proposal: Proposal) -> None:
        known = 0 if self.mind.view is None else self.mind.view.number
        self._ask(lambda: self.redis.change(proposal, known), self._changed)

    def _changed(self, view: View | None) -> None:
        if view is not None:
            self._take(self.mind.changed(view))

    def _adopt(self, view: View) -> None:
        mine = [group for group in GROUPS if self._owns(group)]
        unbroken, self._view = view.follows(self._view), view
        for group in [group for group in self.held if not unbroken or group not in mine]:
            del self.held[group], self._known[group]
        for group in mine:
            if group in self.held:
                self.held[group] = view.number
            else:
                self._load(group, view.number)

    def _load(self, group: str, epoch: int) -> None:
        def answered(last: int | None) -> None:
            view = self.mind.view
            if view is None or group in self.held or not self._owns(group):
                return
            if last is None:
                self._do(50, lambda: self._load(group, view.number))
            elif view.number == epoch:
                self.held[group], self._known[group] = epoch, last

        self._ask(lambda: self.redis.load(group, epoch), answered)

    def _owns(self, group: str) -> bool:
        view = self.mind.view
        if view is None or not self.mind.is_member:
            return False
        return owners(tuple(each.node_id for each in view.members))[group] == self.mind.me.node_id

    def save(self, group: str) -> None:
        """A member commits, say."""
        epoch = self.held.get(group)
        busy = group in self._writing or self.world.now_ms < self.stopped_until_ms
        if epoch is None or busy or not self.running:
            return
        known = self._known[group]

        def answered(write: int | None) -> None:
            self._writing.discard(group)
            if write is not None and self._known.get(group) == known:
                self._known[group] = write

        self._writing.add(group)
        self._ask(lambda: self.redis.save(group, epoch, self.name, known), answered)

    def hear_of_an_end(self, member: Member) -> None:
        self._do(self.world.delay_ms(), lambda: self.mind.ended(member))

    def leave(self) -> None:
        proposal = self.mind.leave()
        self.held = {}
        if proposal is not None:
            self._propose(proposal)


class Simulation:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.world = World(seed)
        self.random = self.world.random
        self.redis = Redis(self.world)
        self.brokers: list[Broker] = []
        self._incarnations = count()
        for node_id in range(1, self.random.randrange(2, 6)):
            self.join(node_id)
        self._save_some()

    def join(self, node_id: int) -> None:
        self.brokers.append(Broker(self.world, self.redis, node_id, next(self._incarnations)))

    def _save_some(self) -> None:
        for broker in self.alive():
            for group in list(broker.held):
                if self.random.random() < 0.3:
                    broker.save(group)
        self.world.later(100, self._save_some)

    def alive(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.running and not broker.mind.leaving]

    def run(self) -> None:
        self.settle()
        for step in self.steps():
            step()
            self.world.run_until(self.world.now_ms + self.random.choice([10, 200, 1_000, 4_000, 9_000]))
        self.settle()

    def steps(self) -> Iterator[Callable[[], None]]:
        acts = [
            self.kill,
            self.stop,
            self.start,
            self.leave,
            self.visit,
            self.slow,
            self.jump,
            self.fail_over,
            self.fail_over_the_view,
            self.twin,
            self.mistake,
        ]
        for _ in range(25):
            yield self.random.choice(acts)

    def kill(self) -> None:
        if self.alive():
            killed = self.random.choice(self.alive())
            killed.running = False
            if self.random.random() < 0.5:
                self._tell_of_an_end(killed)

    def mistake(self) -> None:
        """A connection was lost, and no other could be made, though its broker lives."""
        if self.alive():
            self._tell_of_an_end(self.random.choice(self.alive()))

    def _tell_of_an_end(self, ended: Broker) -> None:
        for broker in self.alive():
            if broker is not ended and self.random.random() < 0.7:
                broker.hear_of_an_end(ended.mind.me)

    def stop(self) -> None:
        if self.alive():
            length_ms = self.random.choice([200, 1_500, 3_500, 20_000, 3_600_000])
            chosen = self.random.choice(self.alive())
            chosen.stopped_until_ms = max(chosen.stopped_until_ms, self.world.now_ms + length_ms)

    def start(self) -> None:
        free = set(range(1, 7)) - {broker.mind.me.node_id for broker in self.alive()}
        if free:
            self.join(self.random.choice(sorted(free)))

    def leave(self) -> None:
        if len(self.alive()) > 1:
            self.random.choice(self.alive()).leave()

    def visit(self) -> None:
        """A broker that reads rarely may miss both its arrival and its departure."""
        free = set(range(1, 7)) - {broker.mind.me.node_id for broker in self.alive()}
        if free:
            self.join(self.random.choice(sorted(free)))
            guest = self.brokers[-1]
            self.world.later(self.random.choice([150, 300, 600]), guest.leave)

    def slow(self) -> None:
        until_ms = self.world.now_ms + self.random.choice([300, 2_000, 5_000, 30_000])
        self.world.slow_until_ms = max(self.world.slow_until_ms, until_ms)

    def jump(self) -> None:
        """Forward: where the clock goes back, numbers go on by counting."""
        self.redis.clock_ms += self.random.choice([60_000, 3_600_000])

    def fail_over(self) -> None:
        view, fences, stored = self.redis.view, dict(self.redis.fences), dict(self.redis.stored)
        if view is not None:
            self.world.later(self.random.choice([5, 100, 600]), lambda: self.redis.lose(view, fences, stored))

    def fail_over_the_view(self) -> None:
        """Perhaps the membership that declared a broker dead, which sees neither that nor its loss."""
        view = self.redis.view
        if view is None:
            return
        if self.alive() and self.random.random() < 0.5:
            sleeper = self.random.choice(self.alive())
            sleeper.stopped_until_ms = max(sleeper.stopped_until_ms, self.world.now_ms + 2_000)
            self._tell_of_an_end(sleeper)
        self.world.later(self.random.choice([5, 600, 1_900, 3_000]), lambda: self.redis.lose_view(view))

    def twin(self) -> None:
        """A second process with the id of one that is there."""
        if self.alive():
            self.join(self.random.choice(self.alive()).mind.me.node_id)

    def settle(self) -> None:
        """After quiet everything has its place; and then nothing changes any more, however slow Redis is."""
        awake_ms = max([0, *(broker.stopped_until_ms for broker in self.alive())])
        self.world.run_until(max(self.world.now_ms, awake_ms, self.world.slow_until_ms) + QUIET_MS)
        self.check()
        changes = self.redis.changes
        self.world.slow_until_ms = self.world.now_ms + 10_000
        self.world.run_until(self.world.slow_until_ms + QUIET_MS)
        assert self.redis.changes == changes, "the view changed in quiet times"
        self.check()

    def check(self) -> None:
        alive = self.alive()
        ids = [broker.mind.me.node_id for broker in alive]
        assert len(set(ids)) == len(ids), f"two brokers with one id: {ids}"
        if not alive:
            return
        view = self.redis.view
        assert view is not None
        assert {member.incarnation for member in view.members} == {broker.name for broker in alive}
        assert {broker.mind.view for broker in alive} == {view}
        held = [group for broker in alive for group in broker.held]
        assert sorted(held) == sorted(GROUPS), "not every group has exactly one owner"
        assert {number for broker in alive for number in broker.held.values()} == {view.number}


def simulate(seed: int) -> Simulation:
    simulation = Simulation(seed)
    print(f"seed {seed}")
    simulation.run()
    return simulation


@pytest.mark.parametrize("seed", range(12))
def test_after_quiet_every_group_has_one_owner(seed: int) -> None:
    run = simulate(seed)
    assert len(run.redis.persisted) > len(GROUPS)
    assert len(run.brokers) > 2


if __name__ == "__main__":
    run_many(simulate)
