"""Simulate many instances of one balanced group, from a seed, on a manual clock.

Instances get, commit and send heartbeats in several ways. Answers get lost, and requests arrive twice or late.
Instances stop, die, and restart under their names; timers fire late. The server restarts, or dies before or after a
write. The group is updated, reset by Kafka's tools, and used by classic members. After every step the rules at the
bottom of `World` must hold. To run one seed again: `simulate(seed)`.
"""

import contextlib
import random
from dataclasses import dataclass

import pytest
from tests.harness.crashing import CrashingContext
from tests.harness.instances import TOPIC, Got, InstanceContext, ServerGone

from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.events import Plan
from headrace.groups.instances.model import GroupCursor, StartKind
from headrace.groups.model import OffsetAndMetadata, TopicPartition

STEPS = 400
LIMITS = (1, 3, 10, 50, 10**9)


class Server(CrashingContext, InstanceContext):
    """It counts its lives."""

    lives = 0

    def restart(self) -> None:
        self.lives += 1
        super().restart()


@dataclass
class Client:
    """A client program with one instance."""

    name: str
    timeout_ms: int
    commit_on_get: bool
    heartbeats: bool
    """Whether heartbeats use a second chain, from the creation cursor."""
    limit: int
    cursor: GroupCursor | None = None
    beating: GroupCursor | None = None
    reading: tuple[GroupCursor, Plan] | None = None
    """A get that the server is still at work on."""
    running: bool = True

    def forget(self) -> None:
        """Start from nothing, as a new process does."""
        self.cursor = self.beating = self.reading = None


class World:
    """The group, its instances, and what they were given."""

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        self.random = random.Random(seed)
        self.partitions = self.random.randint(1, 9)
        self.ctx = Server(self.partitions)
        self.calm = calm
        self.clients = [self._client(number) for number in range(self.random.randint(1, 6))]
        self.past: list[tuple[str, GroupCursor]] = []
        self.epoch = -1
        self.not_before: dict[int, int] = {}
        """Partition -> the time that it was last set to begin at."""
        self.origin: dict[int, int] = {}
        """Where each partition began, since the last update or reset."""
        self.received: dict[int, dict[int, set[str]]] = {}
        """Partition -> offset -> the instances that received it since then."""
        self.positions: dict[int, int] = {}
        self.life_of: dict[GroupCursor, int] = {}
        """In which life of the server a cursor was issued."""
        self.times_reset = [0] * self.partitions
        """By partition: how often its position was set from outside."""
        self.resets_before: dict[GroupCursor, tuple[int, ...]] = {}
        """Cursor -> `times_reset` when it was issued."""
        self.updates = self.resets = self.refusals = self.repeated = self.resumed = 0

    def _client(self, number: int) -> Client:
        return Client(
            name=f"i{number}",
            timeout_ms=self.random.choice([5_000, 30_000, 30_000, 60_000]),
            commit_on_get=self.random.random() < 0.6,
            heartbeats=self.random.random() < 0.3,
            limit=self.random.choice(LIMITS),
        )

    # one step

    def step(self) -> None:
        """Something happens somewhere."""
        dice = self.random.random()
        if dice < 0.65:
            self.act(self.random.choice(self.clients))
        elif dice < 0.75:
            self.ctx.publish(self.random.randrange(self.partitions), self.random.choice([1, 5, 40]))
        elif self.calm:
            self._calm_step(dice)
        elif dice < 0.86:
            self.ctx.sleep(self.random.choice([1, 50, 500, 3_000, 12_000, 31_000]))
        elif dice < 0.88:
            # The server is busy: time passes, and no timer has fired.
            self.ctx.now_ms += self.random.choice([2_000, 31_000])
        elif dice < 0.91:
            self._fail_a_client(self.random.choice(self.clients))
        elif dice < 0.95 and self.past:
            self._repeat(*self.random.choice(self.past))
        elif dice < 0.965:
            self._restart_server()
        elif dice < 0.98:
            self.ctx.crash = self.random.choice(["before", "after"])
        else:
            self._from_outside()
        self.check()

    def _calm_step(self, dice: float) -> None:
        """Let time pass while all instances poll often enough; one with nothing in flight may stop or start."""
        if dice < 0.95:
            self.ctx.sleep(self.random.choice([1, 50, 500]))
            for client in self.clients:
                if client.running:
                    self.act(client)
        else:
            client = self.random.choice(self.clients)
            if not client.running:
                client.running = True
                return
            if client.reading is not None:
                self._finish_get(client)
            if client.cursor is not None:
                # Its last request commits what it has in hand, and brings nothing that it would have to lose.
                cursor = self.ctx.commit_cursor(client.cursor)
                assert not self.ctx.get(cursor, 0).cursor.offsets
            client.running = False
            client.forget()
            self._sleep_calmly(client.timeout_ms + 1)

    def _sleep_calmly(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 1_000 + 1):
            self.ctx.sleep(1_000)
            for client in self.clients:
                if client.running:
                    self.act(client)

    def _fail_a_client(self, client: Client) -> None:
        match self.random.choice(["die", "restart", "silence", "revive"]):
            case "die":
                client.running = False
                client.forget()
            case "restart":
                client.forget()
            case "silence":
                self.ctx.sleep(client.timeout_ms + self.random.choice([0, 1]))
            case _:
                client.running = True

    def _restart_server(self) -> None:
        self.ctx.restart()
        for client in self.clients:
            client.reading = None

    def _from_outside(self) -> None:
        """UpdateGroup, a reset by Kafka's tools, classic members for a while."""
        self.ctx.sleep(0)
        if TOPIC not in self.ctx.whole.balanced:
            return
        match self.random.choice(["update", "reset", "classic"]):
            case "update":
                self._update()
            case "reset":
                partition = self.random.randrange(self.partitions)
                offset = self.random.randint(0, self.ctx.logs[TOPIC][partition].end)
                busy = self.ctx.whole.balanced.any_read
                ticket = self.ctx.commit("", -1, partition=partition, offset=offset)
                if not ticket.lost:
                    assert (ticket.result.partitions[TopicPartition(TOPIC, partition)] is None) is not busy
                if ticket.lost or not busy:
                    self.resets += 1
                    self._begin_again_at(partition)
            case _:
                self._classic_members()

    def _update(self) -> None:
        kind = self.random.choice(list(StartKind))
        time_ms = self.ctx.now_ms + self.random.choice([-60_000, -1_000, 0, 5_000])
        try:
            self.ctx.update(kind, time_ms)
        except ServerGone:
            self._lose_reads()
        if self.ctx.storage.sections[TOPIC].epoch != self.epoch:
            self.updates += 1
            timed = kind is StartKind.AT_TIME
            self.not_before = dict.fromkeys(range(self.partitions), time_ms) if timed else {}

    def _classic_members(self) -> None:
        crash, self.ctx.crash = self.ctx.crash, None
        if self.ctx.whole.balanced.any_read:
            assert self.ctx.join(version=3).error is not None
        else:
            (member,) = self.ctx.stable(1)
            partition = TopicPartition(TOPIC, self.random.randrange(self.partitions))
            position = self.ctx.at(partition.partition)
            offset = self.random.randint(position, max(position, self.ctx.logs[TOPIC][partition.partition].end))
            self.ctx.commit_all(member, {partition: OffsetAndMetadata(offset=offset)})
            for client in self.clients:
                if client.running and client.cursor is not None:
                    cursor = client.cursor
                    self.ctx.refused(InstanceProblem.GROUP_IN_USE, lambda cursor=cursor: self.ctx.beat(cursor))
            self.ctx.leave(member)
            self._begin_again_at(partition.partition)
        self.ctx.crash = crash

    def _begin_again_at(self, partition: int) -> None:
        """A position was set from outside: what was delivered of the partition before counts no longer."""
        self.times_reset[partition] += 1
        self.not_before.pop(partition, None)
        self.positions[partition] = self.origin[partition] = self.ctx.at(partition)
        self.received.pop(partition, None)

    def _issued(self, cursor: GroupCursor) -> None:
        """An instance has a cursor; one that it has already may come again."""
        self.life_of.setdefault(cursor, self.ctx.lives)
        self.resets_before.setdefault(cursor, tuple(self.times_reset))

    def _begin_again(self) -> None:
        """All positions were set from outside: what was delivered before counts no longer."""
        self.positions = {index: self.ctx.at(index) for index in range(self.partitions)}
        self.origin = dict(self.positions)
        self.received = {}

    def _repeat(self, verb: str, cursor: GroupCursor) -> None:
        """Deliver a request again, late; its sender no longer waits for the answer."""
        self.repeated += 1
        with contextlib.suppress(InstanceError, ServerGone):
            getattr(self.ctx, verb)(cursor)
        self._lose_reads()

    def _lose_reads(self) -> None:
        """Drop the answers of a server that has died."""
        for client in self.clients:
            if client.reading is not None and self.life_of[client.reading[1].cursor] != self.ctx.lives:
                client.reading = None

    # an instance's turn

    def act(self, client: Client) -> None:
        """One turn of an instance's loop."""
        if not client.running:
            return
        try:
            if client.cursor is None:
                self._create(client)
            elif client.heartbeats and client.beating is not None and self.random.random() < 0.4:
                client.beating = self._send("beat", client.beating)
            elif client.reading is not None:
                self._finish_get(client)
            elif client.commit_on_get or not client.cursor.offsets:
                self._get(client)
            else:
                self._work(client)
        except ServerGone:
            self._lose_reads()
        except InstanceError as error:
            self._refused(client, error)

    def _refused(self, client: Client, error: InstanceError) -> None:
        """The one refusal that an instance must reckon with, and its cure."""
        self.refusals += 1
        assert not self.calm, f"{client.name}: {error}"
        if error.kind is InstanceProblem.UNRESERVED_PARTITION:
            self._check_taken_away(client, error)
        assert error.kind in (InstanceProblem.UNRESERVED_PARTITION, InstanceProblem.UNKNOWN_GROUP), error
        client.forget()

    def _create(self, client: Client) -> None:
        known = TOPIC in self.ctx.whole.balanced
        kind = self.random.choice([StartKind.TRIM_HORIZON, StartKind.LATEST])
        try:
            cursor = self.ctx.create(
                client.name, kind, timeout_ms=client.timeout_ms, commit_on_get=client.commit_on_get
            )
        finally:
            if not known and TOPIC in self.ctx.whole.balanced:
                self._begin_again()
        self._issued(cursor)
        client.cursor = client.beating = cursor

    def _work(self, client: Client) -> None:
        """An instance with explicit commits reads, sends a heartbeat for delivered messages, or commits them."""
        assert client.cursor is not None
        match self.random.choice(["read on", "heartbeat", "commit", "commit"]):
            case "read on":
                self._get(client)
            case "heartbeat":
                client.cursor = self._send("beat", client.cursor)
            case _:
                cursor = client.cursor
                client.cursor = self._send("commit_cursor", cursor)
                self._check_taken(cursor)

    def _get(self, client: Client) -> None:
        cursor = client.cursor
        assert cursor is not None
        self._remember("get", cursor)
        before = self.ctx.lives
        plan = self.ctx.begin_get(cursor)
        assert self.ctx.lives == before
        self.life_of[plan.cursor] = self.ctx.lives
        self.resets_before[plan.cursor] = tuple(self.times_reset)
        shares = self.ctx.shares()
        assert {each.partition for each in plan.reads} <= set(shares.get(client.name, ()))
        if cursor.commit_on_get:
            self._check_taken(cursor)
        client.reading = (cursor, plan)
        if self.random.random() < 0.7:
            self._finish_get(client)

    def _finish_get(self, client: Client) -> None:
        assert client.reading is not None
        (_, plan), client.reading = client.reading, None
        got = self.ctx.answer_get(plan, client.limit, most_offsets=self.random.choice([1, 3, 100]))
        self.life_of[got.cursor] = self.ctx.lives
        # Its generation is that of the plan.
        self.resets_before[got.cursor] = self.resets_before[plan.cursor]
        if not self.calm and self.random.random() < 0.08:
            # The answer is lost: the same request will be sent again.
            return
        self._take(client, got)

    def _take(self, client: Client, got: Got) -> None:
        client.cursor = got.cursor
        for partition, offset in got.records:
            assert self.ctx.logs[TOPIC][partition].end > offset
            givers = self.received.setdefault(partition, {}).setdefault(offset, set())
            if self.calm:
                assert not givers, f"{partition}:{offset} was given to {givers}, and now to {client.name}"
            givers.add(client.name)

    def _send(self, verb: str, cursor: GroupCursor) -> GroupCursor:
        self._remember(verb, cursor)
        answer: GroupCursor = getattr(self.ctx, verb)(cursor)
        self._issued(answer)
        if not self.calm and self.random.random() < 0.08:
            return cursor
        return answer

    def _remember(self, verb: str, cursor: GroupCursor) -> None:
        self.past = [*self.past[-40:], (verb, cursor)]

    # the rules

    def _check_taken(self, cursor: GroupCursor) -> None:
        """A commit that was not refused is not in vain, also where the partition has moved on in good order."""
        section = self.ctx.whole.balanced[TOPIC].stored()
        member = next((each for each in section.instances if each.name == cursor.instance), None)
        if member is None or member.incarnation != cursor.incarnation:
            return
        # What a server that has restarted did not know to be in flight it may have let go.
        if cursor.epoch != section.epoch or self.life_of.get(cursor) != self.ctx.lives:
            return
        self.resumed += bool(cursor.offsets) and cursor.generation < member.joined
        for partition, offset in cursor.offsets:
            if self.resets_before[cursor][partition] != self.times_reset[partition]:
                continue
            assert self.ctx.at(partition) >= offset, f"{cursor}: {partition} is at {self.ctx.at(partition)}"

    def _check_taken_away(self, client: Client, error: InstanceError) -> None:
        """Only a partition that another instance holds is refused, or the cursor of an earlier life."""
        member = next(
            (each for each in self.ctx.whole.balanced[TOPIC].stored().instances if each.name == client.name), None
        )
        holder = next((name for name, held in self.ctx.shares().items() if error.partition in held), None)
        earlier = member is not None and client.cursor is not None and client.cursor.incarnation < member.incarnation
        assert earlier or holder not in {None, client.name}, f"{client.name}: {error}, held by {holder}"

    def check(self) -> None:
        """Check that committed offsets only increase, and only past delivered records."""
        if TOPIC not in self.ctx.storage.sections:
            return
        epoch = self.ctx.storage.sections[TOPIC].epoch
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin_again()
        for partition in range(self.partitions):
            position = self.ctx.at(partition)
            before = self.positions.get(partition, 0)
            assert position >= before, f"the position in {partition} went back from {before} to {position}"
            given = self.received.get(partition, {})
            for offset in range(max(before, self.origin[partition]), position):
                assert offset in given or self._is_before_time(partition, offset), (
                    f"{partition}:{offset} was skipped: position {position}, origin {self.origin[partition]}"
                )
            self.positions[partition] = position

    def _is_before_time(self, partition: int, offset: int) -> bool:
        """A group that waited for a time passes over what is earlier, once it commits."""
        return self.ctx.logs[TOPIC][partition].times[offset] < self.not_before.get(partition, 0)

    # the end

    def settle(self) -> None:
        """End all faults, and run the instances for a while."""
        self.calm_down()
        for _ in range(300):
            self.ctx.sleep(500)
            for client in self.clients:
                self.act(client)
            self.check()

    def calm_down(self) -> None:
        """No faults from now on."""
        self.ctx.crash = None
        self.random = _Steady(self.random)
        for client in self.clients:
            client.limit = 10**9

    def check_settled(self) -> None:
        """Check that running instances have even shares, and that everything was delivered and committed."""
        running = {client.name for client in self.clients if client.running}
        if TOPIC not in self.ctx.whole.balanced:
            assert not running
            return
        assert set(self.ctx.shares()) == running
        if not running:
            return
        assert self.ctx.whole.balanced[TOPIC].is_settled
        for partition, log in enumerate(self.ctx.logs[TOPIC]):
            unread = [
                offset
                for offset in range(self.origin[partition], log.end)
                if offset not in self.received.get(partition, {}) and not self._is_before_time(partition, offset)
            ]
            assert not unread, f"{partition}: {unread} were given to nobody"


class _Steady(random.Random):
    """Chance without faults: every choice stays possible, nothing is lost or held up."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance.random())

    def random(self) -> float:
        return 0.5

    def getrandbits(self, k: int, /) -> int:
        # Named here, or choices would be made by `random` above.
        return super().getrandbits(k)


def simulate(seed: int, steps: int = STEPS, *, calm: bool = False) -> World:
    world = World(seed, calm=calm)
    try:
        for _ in range(steps):
            world.step()
        world.settle()
        world.check_settled()
        before = world.ctx.whole.describe()
        world.ctx.restart()
        assert world.ctx.whole.describe() == before
    except BaseException as error:
        error.add_note(f"simulate(seed={seed}, calm={calm})")
        raise
    return world


@pytest.mark.parametrize("seed", range(25))
def test_a_group_keeps_its_promises_whatever_happens(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_delivered_twice_while_all_holders_are_alive_and_commit(seed: int) -> None:
    simulate(seed, calm=True)


def test_a_group_keeps_its_promises_from_the_seed_of_the_run() -> None:
    seed = random.getrandbits(32)  # by the seed that pytest-randomly prints
    print(f"simulate(seed={seed})")
    simulate(seed)
    simulate(seed, calm=True)


def test_the_simulation_reaches_what_it_is_for() -> None:
    worlds = [simulate(seed) for seed in range(100, 110)]

    assert sum(world.ctx.lives for world in worlds) > 0
    assert sum(world.updates for world in worlds) > 0
    assert sum(world.resets for world in worlds) > 0
    assert sum(world.refusals for world in worlds) > 0
    assert sum(world.resumed for world in worlds) > 0
    assert sum(world.repeated for world in worlds) > 0
    assert sum(len(world.received) for world in worlds) > 0
    assert max(world.ctx.whole.balanced[TOPIC].generation for world in worlds if TOPIC in world.ctx.whole.balanced) > 20
