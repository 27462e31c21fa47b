"""Producers, a coordinator that dies, and logs, with messages that get lost, arrive twice or late. From a seed.

Time is simulated: `World.later` queues what happens. A participant is a log; a group's pending offsets behave the same
way. The rules at the bottom of `World` must hold at every step, and after the faults have ended.
"""

import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from headrace.machines.effects import CancelTimer, Now, Persist, Reply, SetTimer
from headrace.transactions.effects import Effect, EndParticipants, InitResult, NewProducerId, refusal
from headrace.transactions.errors import RETRIABLE, TransactionError
from headrace.transactions.events import (
    Add,
    End,
    Ended,
    Event,
    Init,
    Lookup,
    ProducerIdAllocated,
    Request,
    TimerFired,
    TimerKind,
    Verify,
)
from headrace.transactions.model import (
    NEW,
    TV2,
    GroupId,
    Participant,
    StoredTransaction,
    TransactionChange,
    TransactionSettings,
)
from headrace.transactions.snapshot import Snapshot, decode, encode
from headrace.transactions.transaction import Transaction
from tests.harness.transactions import P0, P1, WALL_MS

PARTICIPANTS: tuple[Participant, ...] = (P0, P1, GroupId("g"))
TIMEOUT_MS = 3_000
SETTINGS = TransactionSettings(max_timeout_ms=TIMEOUT_MS, expiration_ms=3_600_000)
E = TransactionError
Then = Callable[[Any], None]


class Storage:
    """The hash of the transactional ID. A write with a lower fence is rejected."""

    def __init__(self) -> None:
        self.text: bytes | None = None
        self.fence = (0, 0)

    @property
    def stored(self) -> StoredTransaction:
        return NEW if self.text is None else decode(self.text)

    def write(self, fence: tuple[int, int], changes: tuple[TransactionChange, ...]) -> bool:
        if fence < self.fence:
            return False
        self.fence = fence
        snapshot = Snapshot(self.stored)
        snapshot.apply(changes)
        self.text = None if snapshot.nothing else encode(snapshot.stored)
        return True


class Coordinator:
    """One broker's runner of the machine, as `broker.coordinator.runtime.Runner`."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.given_up = 0
        self.alive = True
        self.serves = True
        """Whether clients reach it. A deposed coordinator may go on for a while."""
        self.timers: dict[TimerKind, int] = {}
        self.waiting: dict[Hashable, tuple[Request, Then]] = {}
        self.queue: list[Event] = []
        self.writes = False
        world.storage.fence = max(world.storage.fence, (number, 0))
        self.snapshot = Snapshot(world.storage.stored)
        self.restore()

    def restore(self) -> None:
        self.timers.clear()
        self.machine, effects = Transaction.restore("id", SETTINGS, self.snapshot.stored, self.world.now)
        self.carry_out(effects)

    def ask(self, request: Request, then: Then) -> None:
        if not self.alive or not self.serves:
            then(refusal(request, E.NOT_COORDINATOR))
            return
        self.waiting[request.token] = (request, then)
        self.post(request)

    def post(self, event: Event) -> None:
        if self.alive:
            self.queue.append(event)
            self.work()

    def work(self) -> None:
        while self.queue and not self.writes and self.alive:
            self.carry_out(self.machine.handle(self.queue.pop(0), self.world.now))

    def carry_out(self, effects: list[Effect]) -> None:
        for index, effect in enumerate(effects):
            match effect:
                case Persist(changes):
                    self.writes = True
                    rest = effects[index + 1 :]
                    self.world.write(self, changes, lambda outcome, rest=rest, changes=changes:  # type: ignore[misc]
                                     self.written(outcome, changes, rest))  # fmt: skip
                    return
                case SetTimer(key, deadline_ms):
                    self.timers[key] = deadline_ms
                    self.world.later(deadline_ms - self.world.now_ms, lambda each=effect: self.fired(each))  # type: ignore[misc]
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(token, result):
                    _, then = self.waiting.pop(token, (None, None))
                    if then is not None:
                        then(result)
                case EndParticipants():
                    self.world.end(self, effect)
                case NewProducerId():
                    self.world.allocate(self)

    def written(self, outcome: str, changes: tuple[TransactionChange, ...], rest: list[Effect]) -> None:
        if not self.alive:
            return
        self.writes = False
        if outcome == "ok":
            self.snapshot.apply(changes)
            self.carry_out(rest)
        elif outcome == "fenced":
            self.die()
        else:
            self.given_up += 1
            self.failed()
        self.work()

    def failed(self) -> None:
        """The machine has what storage confirmed. The queue and all waiting requests are refused."""
        self.refuse()
        self.restore()

    def refuse(self) -> None:
        waiting, self.waiting = self.waiting, {}
        self.queue.clear()
        for request, then in waiting.values():
            then(refusal(request, E.COORDINATOR_NOT_AVAILABLE))

    def die(self) -> None:
        self.alive = False
        self.refuse()

    def fired(self, timer: SetTimer[TimerKind]) -> None:
        if self.alive and self.timers.get(timer.key) == timer.deadline_ms:
            del self.timers[timer.key]
            self.post(TimerFired(timer.key))


@dataclass
class Entry:
    """A record, or a marker (`tag` is None)."""

    producer_id: int
    tag: int | None
    commit: bool = False


class Log:
    """A participant: what its leader must do, in a few lines."""

    compares_numbers = True

    def __init__(self, world: "World", name: Participant) -> None:
        self.world = world
        self.name = name
        self.entries: list[Entry] = []
        self.open: dict[int, tuple[int, int | None]] = {}
        """Producer -> first offset, and the number of the transaction if it is known."""
        self.ended: dict[int, int] = {}
        """Producer -> number of the last transaction that ended. Durable."""
        self.epochs: dict[int, int] = {}
        self.sequences: dict[tuple[int, int], int] = {}

    def recover(self) -> None:
        """Another leader: it knows what the log says, and asks about open transactions."""
        self.open = {producer: (first, None) for producer, (first, _) in self.open.items()}
        for pid, (first, _) in self.open.items():
            lookup = Lookup(token=self.world.token(), producer_id=pid, epoch=self.epochs[pid], participant=self.name)
            self.world.ask(lookup, partial(self.looked_up, pid, first))

    def looked_up(self, pid: int, first: int, result: Any) -> None:
        """Abort a transaction that its coordinator does not know."""
        if result.error is None and not result.open and self.open.get(pid, (-1, None))[0] == first:
            self.entries.append(Entry(pid, None))
            del self.open[pid]

    def produce(self, write: "Write", then: Then) -> None:
        pid, epoch = write.producer
        sequence = self.sequences.get((pid, epoch), -1)
        if epoch < self.epochs.get(pid, -1):
            then(E.PRODUCER_FENCED)
        elif write.sequence <= sequence:
            then(None)
        elif write.sequence != sequence + 1:
            then(E.INVALID_TXN_STATE)
        elif pid in self.open and self.epochs.get(pid) == epoch:
            self.append(write)
            then(None)
        else:
            request: Add | Verify = Verify(
                token=self.world.token(), producer_id=pid, epoch=epoch, participants=(self.name,)
            )
            if write.version >= TV2:
                request = Add(
                    token=self.world.token(), producer_id=pid, epoch=epoch, participants=(self.name,), version=TV2
                )
            self.world.ask(request, lambda result: self.verified(write, result, then))

    def verified(self, write: "Write", result: Any, then: Then) -> None:
        pid, epoch = write.producer
        if result.error is not None or getattr(result, "missing", None):
            then(result.error or E.TRANSACTION_ABORTABLE)
        elif epoch < self.epochs.get(pid, -1) or result.number <= self.ended.get(pid, 0):
            then(E.INVALID_TXN_STATE)
        elif write.sequence != self.sequences.get((pid, epoch), -1) + 1:
            then(None if write.sequence <= self.sequences[pid, epoch] else E.INVALID_TXN_STATE)
        else:
            self.epochs[pid] = epoch
            self.open.setdefault(pid, (len(self.entries), result.number))
            self.append(write)
            then(None)

    def append(self, write: "Write") -> None:
        self.sequences[write.producer] = write.sequence
        self.entries.append(Entry(write.producer[0], write.tag))

    def end(self, call: EndParticipants) -> None:
        pid = call.producer_id
        first, number = self.open.get(pid, (None, None))
        if self.compares_numbers and (
            call.number <= self.ended.get(pid, 0) or (number is not None and call.number < number)
        ):
            return
        if first is not None:
            self.entries.append(Entry(pid, None, call.commit))
            del self.open[pid]
        self.ended[pid] = call.number
        self.epochs[pid] = max(self.epochs.get(pid, -1), call.epoch)

    @property
    def last_stable_offset(self) -> int:
        return min((first for first, _ in self.open.values()), default=len(self.entries))

    def committed(self) -> list[int]:
        """Tags as a reader of committed records sees them."""
        found: list[tuple[int, int]] = []
        pending: dict[int, list[tuple[int, int]]] = {}
        for offset, entry in enumerate(self.entries):
            if entry.tag is not None:
                pending.setdefault(entry.producer_id, []).append((offset, entry.tag))
            else:
                tags = pending.pop(entry.producer_id, [])
                found += [(offset, tag) for offset, tag in tags if entry.commit]
        return [tag for offset, tag in sorted(found) if offset < self.last_stable_offset]


@dataclass
class Write:
    """A batch of a producer for one log."""

    tag: int
    producer: tuple[int, int]
    sequence: int
    version: int


@dataclass
class Attempt:
    """One transaction of a producer, as its application sees it."""

    tag: int
    logs: list[Participant]
    commits: bool
    acked: set[Participant] = field(default_factory=set)
    failed: bool = False
    commit_sent: bool = False
    outcome: str = "open"
    """`open`, `committed`, `aborted` or `unknown`."""


class Producer:
    """A client with one transactional ID, as its library runs it."""

    def __init__(self, world: "World", version: int) -> None:
        self.world = world
        self.version = version
        self.alive = True
        self.producer: tuple[int, int] | None = None
        self.sequences: Counter[Participant] = Counter()
        self.attempt: Attempt | None = None
        self.unsure = False
        self.waits = 0
        self.init()

    # requests, repeated until they are answered

    def call(self, make: Callable[[], Request], then: Then, tries: int = 25) -> None:
        """Send a request, and again after an error that is retriable or a lost response."""
        self.waits += 1
        mine = self.waits

        def again() -> None:
            if self.alive and self.waits == mine:
                self.call(make, then, tries - 1)

        def answered(result: Any) -> None:
            if not self.alive or self.waits != mine:
                return
            if result.error in RETRIABLE:
                self.world.later(self.world.random.choice([20, 100]), again)
                return
            self.waits += 1
            then(result)

        if tries <= 0:
            self.die()
            return
        # A connection that is given up delivers nothing after the response to a later request.
        self.world.ask(make(), answered, lambda: self.waits == mine and self.alive)
        self.world.later(800, again)

    def init(self, continues: bool = False) -> None:
        pid, epoch = self.producer if continues and self.producer else (-1, -1)
        self.call(
            lambda: Init(token=self.world.token(), timeout_ms=TIMEOUT_MS, producer_id=pid, epoch=epoch),
            self.initialized,
        )

    def initialized(self, result: InitResult) -> None:
        if result.error is not None:
            self.die()
            return
        self.became(result.producer_id, result.epoch)
        self.unsure = False
        self.begin()

    def became(self, pid: int, epoch: int) -> None:
        if self.producer != (pid, epoch):
            self.producer = (pid, epoch)
            self.sequences.clear()

    def begin(self) -> None:
        if not self.alive or (not self.world.faults and self.world.random.random() < 0.05):
            self.alive = False
            return
        chance = self.world.random
        logs = chance.sample(PARTICIPANTS, chance.randint(1, len(PARTICIPANTS)))
        self.attempt = Attempt(self.world.tag(), logs, chance.random() < 0.7)
        self.world.attempts.append(self.attempt)
        self.next(0)

    def next(self, index: int) -> None:
        """Go on with the next log, sometimes after a pause that is longer than the transaction's time."""
        if not self.alive:
            return
        if self.version < TV2 and index < len(self.now().logs):
            self.add(index)
        else:
            self.write(index)

    def add(self, index: int) -> None:
        attempt = self.now()
        assert self.producer is not None
        pid, epoch = self.producer
        name = attempt.logs[index]
        self.call(
            lambda: Add(token=self.world.token(), producer_id=pid, epoch=epoch, participants=(name,)),
            lambda result: self.write(index) if result.error is None else self.die(),
        )

    def now(self) -> Attempt:
        assert self.attempt is not None
        return self.attempt

    def write(self, index: int) -> None:
        attempt = self.now()
        assert self.producer is not None
        if index == len(attempt.logs) or self.world.random.random() < 0.03:
            attempt.failed = index < len(attempt.logs)
            self.finish()
            return
        name = attempt.logs[index]
        write = Write(attempt.tag, self.producer, self.sequences[name], self.version)
        self.waits += 1
        mine = self.waits
        tries = count()

        def answered(error: TransactionError | None) -> None:
            if not self.alive or self.waits != mine:
                return
            if error is None:
                self.waits += 1
                attempt.acked.add(name)
                self.sequences[name] += 1
                pause_ms = self.world.random.choices([1, 5, 40, TIMEOUT_MS + 500], [10, 10, 10, 1])[0]
                self.world.later(pause_ms, lambda: self.next(index + 1))
            elif error in RETRIABLE:
                self.world.later(50, send)
            else:
                self.waits += 1
                attempt.failed = self.unsure = True
                self.finish()

        def send() -> None:
            if not self.alive or self.waits != mine:
                return
            if next(tries) > 6:
                self.waits += 1
                attempt.failed = self.unsure = True
                self.finish()
                return
            self.world.send(lambda: self.world.logs[name].produce(write, lambda error: self.world.send(
                lambda: answered(error))))  # fmt: skip
            self.world.later(600, send)

        send()

    def finish(self) -> None:
        attempt = self.now()
        assert self.producer is not None
        pid, epoch = self.producer
        commit = attempt.commits and not attempt.failed
        attempt.commit_sent = commit
        sent = [0]

        def make() -> End:
            sent[0] += 1
            return End(token=self.world.token(), producer_id=pid, epoch=epoch, commit=commit, version=self.version)

        def ended(result: Any) -> None:
            if result.error is not None:
                # A response to a repeated request may be about the state that the first one left.
                attempt.outcome = "unknown" if commit and sent[0] > 1 else "aborted"
                self.die()
                return
            attempt.outcome = "committed" if commit else "aborted"
            self.attempt = None
            self.world.outcomes[attempt.outcome] += 1
            if self.version >= TV2:
                self.became(result.producer_id, result.epoch)
                # Also after the client has seen the end: the next transaction begins at once.
                self.begin()
            elif self.unsure:
                # Batches in flight have the epoch of the next transaction.
                self.init(continues=True)
            else:
                self.begin()

        self.call(make, ended)

    def die(self) -> None:
        """The application ends, and does not know about its last commit."""
        self.alive = False
        attempt = self.attempt
        if attempt is not None and attempt.outcome == "open":
            attempt.outcome = "unknown" if attempt.commit_sent else "aborted"


class World:
    """All of them, their network, and what they were promised."""

    def __init__(self, seed: int, log: type[Log] = Log, coordinator: type[Coordinator] = Coordinator) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000_000
        self.faults = True
        self.happened: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.attempts: list[Attempt] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.storage = Storage()
        self.ids = count(1)
        self.logs = {name: log(self, name) for name in PARTICIPANTS}
        self._type = coordinator
        self.coordinator = coordinator(self, 1)
        if self.random.random() < 0.3:
            # Epochs are about to be exhausted.
            pid = next(self.ids)
            stored = StoredTransaction(
                state=NEW.state,
                producer_id=pid,
                producer_epoch=self.random.randint(32_760, 32_766),
                timeout_ms=TIMEOUT_MS,
            )
            self.storage.text = encode(stored)
            self.coordinator = coordinator(self, 2)
        self.producers = [Producer(self, self.random.choice([1, 2]))]

    @property
    def now(self) -> Now:
        return Now(WALL_MS + self.now_ms, self.now_ms)

    def token(self) -> int:
        return next(self._numbers)

    tag = token

    def later(self, ms: int, what: Callable[[], None]) -> None:
        heappush(self._queue, (self.now_ms + max(ms, 0), next(self._numbers), what))

    # the network

    def send(self, what: Callable[[], None], wanted: Callable[[], bool] = lambda: True) -> None:
        """Deliver a message once, never, late or twice."""
        copies = 1
        if self.faults:
            copies = self.random.choices([0, 1, 2], [4, 92, 4])[0]
        for number in range(copies):
            late = self.faults and self.random.random() < 0.05
            delay_ms = self.random.choice([1_000, 4_000]) if late else self.random.choice([1, 2, 3, 20])
            self.later(delay_ms + number, lambda: what() if wanted() else None)

    def ask(self, request: Request, then: Then, wanted: Callable[[], bool] = lambda: True) -> None:
        asked: set[int] = set()

        def arrive() -> None:
            # A repeated delivery is another request.
            token = self.token()
            asked.add(token)
            event = type(request)(
                **{**{each: getattr(request, each) for each in request.__struct_fields__}, "token": token}
            )
            self.coordinator.ask(event, lambda result: self.send(lambda: then(result)))

        self.send(arrive, wanted)

    def end(self, coordinator: Coordinator, call: EndParticipants) -> None:
        for name in call.participants:
            self.send(lambda name=name: self.end_one(coordinator, call, name))  # type: ignore[misc]
        self.later(300, lambda: coordinator.post(Ended(call.number, ())))

    def end_one(self, coordinator: Coordinator, call: EndParticipants, name: Participant) -> None:
        self.logs[name].end(call)
        self.send(lambda: coordinator.post(Ended(call.number, (name,))))

    def allocate(self, coordinator: Coordinator) -> None:
        fails = self.faults and self.random.random() < 0.2
        producer_id = None if fails else next(self.ids)
        self.later(5, lambda: coordinator.post(ProducerIdAllocated(producer_id)))

    def write(
        self, coordinator: Coordinator, changes: tuple[TransactionChange, ...], then: Callable[[str], None]
    ) -> None:
        """Write to storage: it may be refused, done without a response, or done after a later one."""
        fence = (coordinator.number, coordinator.given_up)
        chance = self.random.random() if self.faults else 1.0

        def arrive(silent: bool = False) -> None:
            accepted = self.storage.write(fence, changes)
            if not silent:
                self.later(1, lambda: then("ok" if accepted else "fenced"))

        if chance > 0.06:
            self.later(self.random.choice([1, 2, 10]), arrive)
            return
        self.happened["refused write"] += 1
        if chance > 0.03:
            self.later(self.random.choice([1, 30, 500]), lambda: arrive(silent=True))
        self.later(20, lambda: then("failed"))

    # faults

    def fail(self) -> None:
        """Something breaks, and again later."""
        if not self.faults:
            return
        match self.random.choice(["kill", "take over", "recover", "new producer", "die"]):
            case "kill":
                self.happened["kill"] += 1
                self.coordinator.die()
                self.later(self.random.choice([10, 1_000]), self.start)
            case "take over":
                # The earlier one still has calls, timers and writes in flight.
                self.happened["take over"] += 1
                self.coordinator.serves = False
                self.coordinator.refuse()
                self.start()
            case "recover":
                self.random.choice(list(self.logs.values())).recover()
            case "new producer":
                self.producers.append(Producer(self, self.random.choice([1, 2])))
            case _:
                self.random.choice(self.producers).die()
        self.later(self.random.choice([50, 400, 1_500, 3_500]), self.fail)

    def start(self) -> None:
        if not (self.coordinator.alive and self.coordinator.serves):
            self.coordinator = self._type(self, self.storage.fence[0] + 1)

    # the run

    def run(self, ms: int = 20_000) -> None:
        """Faults for a while, then none."""
        self.later(100, self.fail)
        self._until(self.now_ms + ms)
        self.faults = False
        self.start()
        self._until(self.now_ms + 1_000)
        for producer in self.producers:
            producer.die()
        if self.random.random() < 0.5:
            self.coordinator.die()
            self.start()
        self._until(self.now_ms + 30_000)
        self.check_settled()

    def _until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, what = heappop(self._queue)
            what()
            if not any(producer.alive for producer in self.producers) and self.faults:
                self.producers.append(Producer(self, self.random.choice([1, 2])))
            self.check()
        self.now_ms = end_ms

    # the rules

    def check(self) -> None:
        """No reader sees a record of an aborted transaction."""
        attempt = self.attempts[-1] if self.attempts else None
        if attempt is None or self.random.random() > 0.05:
            return
        self.check_aborted()

    def check_aborted(self) -> None:
        aborted = {attempt.tag for attempt in self.attempts if attempt.outcome == "aborted"}
        for name, log in self.logs.items():
            seen = aborted.intersection(log.committed())
            assert not seen, f"{name} shows aborted records: {seen}"

    def check_settled(self) -> None:
        """Everything has ended; all or nothing of each transaction is visible, and all of an acknowledged one."""
        self.check_aborted()
        for name, log in self.logs.items():
            assert log.last_stable_offset == len(log.entries), f"the last stable offset of {name} is stuck"
            tags = log.committed()
            assert len(tags) == len(set(tags)), f"{name} has a record twice"
        assert not self.coordinator.machine.current.state.open, self.coordinator.machine.current
        assert self.storage.stored.producer_epoch <= 32_767
        visible = {name: set(log.committed()) for name, log in self.logs.items()}
        for attempt in self.attempts:
            seen = {name for name in attempt.acked if attempt.tag in visible[name]}
            anywhere = {name for name in PARTICIPANTS if attempt.tag in visible[name]}
            assert anywhere in (set(), attempt.acked), f"{attempt} is visible in part: {anywhere}"
            assert attempt.outcome != "committed" or seen == set(attempt.logs), f"{attempt} is lost: {seen}"
