"""The runner of one consumer group: it alone touches the group's machine.

A runner takes one event at a time: it asks the machine for effects, carries them out in order, and only then takes
the next one. What has to be durable is durable before the answer that promises it. A heartbeat promises nothing: it is
answered during a write, too.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from contextvars import Context
from time import perf_counter
from typing import Protocol

import structlog

from headrace.broker.coordinator.event_log import GroupTeller
from headrace.broker.coordinator.group_memory import GroupMemory, Held
from headrace.broker.coordinator.offset_mirror import Mirror
from headrace.broker.coordinator.ownership import Coordination
from headrace.broker.coordinator.timers import Doubt, GroupTimers
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.clock import Timer
from headrace.broker.runtime.scheduler import SLICE_S, CooperativeScheduler
from headrace.groups.balanced.model import Reservation
from headrace.groups.effects import CancelTimer, Effect, HeartbeatResult, Persist, Reply, Result, SetTimer, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, Event, Heartbeat, Now, Request, TimerFired
from headrace.groups.group import Group
from headrace.groups.model import GroupChange, GroupSettings, Position, SavePositions, StoredGroup, TopicPartition
from headrace.groups.snapshot import Snapshot
from headrace.topics.errors import TopicError


# What a group has of topics that were deleted, until storage has it no more: it is told to nobody.
class Dropping:
    """The drops that one group has before it."""

    def __init__(self) -> None:
        self._drops: dict[DropTopic, None] = {}

    def __bool__(self) -> bool:
        return bool(self._drops)

    def begin(self, drop: DropTopic) -> None:
        """A topic was deleted."""
        self._drops[drop] = None

    def end(self) -> list[DropTopic]:
        """Storage has all of it, or is to be told again; which they were."""
        drops, self._drops = self._drops, {}
        return list(drops)

    def without(self, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, Position]:
        """Those positions that stay."""
        if not self._drops:
            return positions
        drops: dict[str, list[DropTopic]] = {}
        for drop in self._drops:
            drops.setdefault(drop.topic, []).append(drop)
        return {
            place: position
            for place, position in positions.items()
            if not any(drop.takes(position.topic_id) for drop in drops.get(place.topic, ()))
        }


# Answers many requests in several turns of the event loop: each answer is to be encoded and sent in its turn.
AT_ONCE = 200
"""Requests that are answered in one turn."""
Late = deque[tuple["asyncio.Future[Result]", Result]]
"""Answers that have to wait for theirs, in order. Nobody takes them back: they were decided, and stored if need be."""


def answer_soon(late: Late) -> None:
    """Answer all of them, in the next turns of the loop."""
    if late:
        asyncio.get_running_loop().call_soon(_answer_some, late)


def _answer_some(late: Late) -> None:
    for _ in range(min(len(late), AT_ONCE)):
        future, result = late.popleft()
        if not future.done():
            future.set_result(result)
    answer_soon(late)


_log = structlog.get_logger("headrace.broker.coordinator")

_AGAIN_MS = 1_000
"""How soon storage is told again of what it refused and no client repeats: a topic was deleted, a time is over."""


class Home(Doubt, Protocol):
    """What a runner needs of the server that has it."""

    @property
    def coordination(self) -> Coordination:
        """Whose groups are whose, and which topics there are."""

    @property
    def storage(self) -> GroupStorage:
        """Where the group's changes go."""

    @property
    def settings(self) -> GroupSettings:
        """Limits of every group."""

    @property
    def memory(self) -> GroupMemory:
        """What all groups of the server hold."""

    @property
    def lane(self) -> CooperativeScheduler:
        """The turns that long work takes."""

    @property
    def mirror(self) -> Mirror:
        """Where stored positions are shown."""

    def now(self) -> Now:
        """The time, as groups' machines are told it."""

    def settled(self, runner: "Runner") -> None:
        """A runner has nothing to do."""


class Runner:
    """The one owner of a group's machine."""

    def __init__(self, stored: StoredGroup, table: Home) -> None:
        self.name = stored.name
        self.view = table.coordination.number
        """The number of the view by which this server coordinates it; None: it is alone."""
        self._table = table
        self._snapshot = Snapshot(stored)
        self._queue: deque[tuple[Event, int]] = deque()
        """Events with the time of their arrival (ticks)."""
        self._seen_alive: set[str] = set()
        """Members whose heartbeat was answered during a write, and is in the queue to keep them: once is enough."""
        self._waiting: dict[Hashable, tuple[Request, asyncio.Future[Result]]] = {}
        self._timers = GroupTimers(table, lambda key: self.post(TimerFired(key)))
        self._resting = False
        """Whether events wait for their turn: those before them took long."""
        self._writing: asyncio.Task[None] | None = None
        self._began_ms = 0  # the write that is under way (ticks)
        self._rewrite = False
        self._dropping = Dropping()
        self._again: Timer | None = None
        self._closed = False
        self._why_closed = GroupError.COORDINATOR_NOT_AVAILABLE
        self._held = Held(table.memory)
        self.machine, effects = Group.restore(stored, table.settings, table.now())
        self._count()
        self._teller = GroupTeller(stored.name, self.machine)
        self._carry_out(effects)

    # Events in

    def request(self, event: Request) -> "asyncio.Future[Result]":
        """Queue a request; the future gets its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(refusal(event, self._why_closed))
            return future
        if self._writing is not None and isinstance(event, Heartbeat) and self.machine.classic.may_go_on(event):
            # It promises nothing that has to be durable: a Redis that hangs must not cost members their sessions.
            future.set_result(HeartbeatResult(error=None))
            if event.member_id not in self._seen_alive:
                self._seen_alive.add(event.member_id)
                self.post(event)
            return future
        self._waiting[event.token] = (event, future)
        self.post(event)
        return future

    def post(self, event: Event) -> None:
        """Queue an event nobody waits for, and work through the queue unless a write is under way."""
        if self._closed:
            return
        if isinstance(event, DropTopic):
            self._dropping.begin(event)
        self._queue.append((event, self._table.clock.ticks_ms()))
        self._work()

    def _go_on(self) -> None:
        self._resting = False
        self._work()

    def _work(self) -> None:
        if self._resting:
            return
        until = perf_counter() + SLICE_S
        while self._queue and self._writing is None:
            if perf_counter() >= until:
                # Of a topic of thousands of partitions each event takes milliseconds.
                self._resting = True
                self._table.lane.later(self._go_on)
                return
            event, arrived_ms = self._queue.popleft()
            if isinstance(event, Heartbeat):
                self._seen_alive.discard(event.member_id)
            effects = self.machine.handle(event, self._table.now(), arrived_ms, self._table.memory.room)
            self._count()
            self._teller.look(self.machine, event)
            self._carry_out(effects)
        if self._writing is None:
            if self._again is None:
                self._dropping.end()
            self._table.settled(self)

    def _count(self) -> None:
        self._held.now(self.machine.member_bytes, self.machine.offset_bytes)

    # Effects out

    def _carry_out(self, effects: list[Effect]) -> None:
        late = Late()
        for index, effect in enumerate(effects):
            if isinstance(effect, Persist):
                # In a context of its own: what is done after the write, and told, is not all of who asked for it.
                writing = self._write(effect, effects[index + 1 :])
                self._began_ms = self._table.clock.ticks_ms()
                self._writing = asyncio.get_running_loop().create_task(writing, context=Context())
                break
            if index < AT_ONCE:
                self._act(effect)
            elif isinstance(effect, Reply):
                _, future = self._waiting.pop(effect.token, (None, None))
                if future is not None:
                    late.append((future, effect.result))
            elif isinstance(effect, SetTimer):
                self._timers.set_late(effect.key, effect.deadline_ms)
            else:
                self._act(effect)
        answer_soon(late)

    def _act(self, effect: Effect) -> None:
        match effect:
            case Reply(token, result):
                _, future = self._waiting.pop(token, (None, None))
                if future is not None and not future.done():
                    future.set_result(result)
            case SetTimer(key, deadline_ms):
                self._timers.set(key, deadline_ms)
            case CancelTimer(key):
                self._timers.cancel(key)

    async def _write(self, persist: Persist, rest: list[Effect]) -> None:
        changes: tuple[GroupChange, ...] = persist.changes
        try:
            before = self._snapshot.rewrite() if self._rewrite else ()
            await self._table.storage.save(self.name, (*before, *changes), self.view)
        except TopicError as error:
            self._start_over(str(error))
            _log.error("group not stored", group=self.name, reason=str(error))
        else:
            self._rewrite = False
            self._snapshot.apply(changes)
            if len(changes) > AT_ONCE:
                # As much again is done for as many members now: not in one piece.
                await asyncio.sleep(0)
            for change in changes:
                if isinstance(change, SavePositions):
                    self._table.mirror.show(self.name, change.positions)
            self._writing = None
            self._carry_out(rest)
        if self._writing is asyncio.current_task() or self._writing is None:
            self._writing = None
            if self._closed:
                # What it went on with: timers, of which nobody wants to hear any more.
                self._refuse_all()
                return
            self._work()

    def _start_over(self, reason: str) -> None:
        """Storage refused: whoever waits is told so, and the machine goes back to what storage has."""
        self._refuse_all(reason)
        # The write may have happened all the same: the next one says everything anew.
        self._rewrite = True
        self._writing = None
        self.machine, effects = Group.restore(self._snapshot.stored, self._table.settings, self._table.now())
        if not self._closed:
            self._count()
        self._teller = GroupTeller(self.name, self.machine)
        clock = self._table.clock
        again_ms = clock.ticks_ms() + _AGAIN_MS
        self._carry_out([_not_before(again_ms, effect) for effect in effects])
        if self._dropping:
            self._again = clock.call_at(again_ms, self._drop_again)

    def _drop_again(self) -> None:
        self._again = None
        for drop in self._dropping.end():
            if not self._table.coordination.has_again(drop):
                self.post(drop)

    def _call_off(self) -> None:
        self._timers.cancel_all()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _refuse_all(self, reason: str = "") -> None:
        """Call every timer off, and tell whoever waits that the coordinator is not available, and why, if known."""
        self._call_off()
        for request, future in self._waiting.values():
            if not future.done():
                future.set_result(refusal(request, self._why_closed, reason))
        self._waiting.clear()
        self._queue.clear()
        self._seen_alive.clear()

    @property
    def writing_since_ms(self) -> int | None:
        """When the write that is under way began (ticks); None: there is none."""
        return None if self._writing is None else self._began_ms

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """Positions that storage has, in topics that there are."""
        return self._dropping.without(self._snapshot.positions)

    def reservations(self, topic: str) -> list[Reservation] | None:
        """A balanced section's partitions as storage has them; None when there is no such section.

        Until when a partition is reserved is in memory only: it moves with every request.
        """
        section = self._snapshot.sections.get(topic)
        if section is None:
            return None
        present = self.machine.reservations(topic, self._table.now())
        until = {each.instance: each.reserved_until_ms for each in present or ()}
        positions = self.positions
        return [
            Reservation(
                partition=index,
                committed=None if index in section.starts or position is None else position.offset,
                instance=None if owner is None else owner.instance,
                reserved_until_ms=None if owner is None else until.get(owner.instance),
            )
            for index, owner in enumerate(section.owners)
            for position in (positions.get(TopicPartition(topic, index)),)
        ]

    @property
    def sections(self) -> Iterable[str]:
        """Topics that have a balanced section, as storage has them."""
        return self._snapshot.sections

    @property
    def idle_and_empty(self) -> bool:
        """Nothing stored, nobody waiting, no timer: the group need not exist."""
        return self._snapshot.nothing and not (self._waiting or self._timers or self._queue or self._rewrite)

    def hand_over(self) -> None:
        """Another broker coordinates it from now on. What is under way to storage lands, or is refused there."""
        self._closed = True
        self._why_closed = GroupError.NOT_COORDINATOR
        self._held.now(0, 0)
        self._refuse_all()

    async def close(self) -> None:
        """Take no more events, refuse whoever waits, and wait for a write under way."""
        self._closed = True
        self._held.now(0, 0)
        self._refuse_all()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def stop(self) -> None:
        """Cancel every timer and drop what waits."""
        self._call_off()
        for _, future in self._waiting.values():
            future.cancel()
        self._waiting.clear()


def _not_before(earliest_ms: int, effect: Effect) -> Effect:
    """The effect; a timer is put off until then.

    What is due already would be written, and refused, hundreds of times a second.
    """
    if isinstance(effect, SetTimer) and effect.deadline_ms < earliest_ms:
        return SetTimer(effect.key, earliest_ms)
    return effect
