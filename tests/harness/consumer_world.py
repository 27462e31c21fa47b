"""Consumers of one group (KIP-848), what happens to them, and the rules that must hold after each event."""

import random
from collections import Counter
from typing import Any
from uuid import UUID

from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit
from headrace.groups.model import JOIN_EPOCH, GroupSettings, StoredConsumer
from tests.harness.consumer_processes import Consumer, ConsumerContext, Part, is_accepted
from tests.harness.groups import Ticket

SESSION_MS = 45_000
NAMES = ("flights", "flights-late", "weather", "planes")
PATTERNS = (None, None, None, "flights", "p")
MOST_SILENT_MS = 20_000
"""A client that is answered more often must not be removed."""


class World:
    """The group, its clients, and what they read."""

    def __init__(self, seed: int, *, numbered: bool = True) -> None:
        """`numbered`: the server knows over which of a client's connections a request comes."""
        self.random = random.Random(seed)
        self.adoptions = random.Random(f"{seed}, adoptions")
        self.numbered = numbered
        self.ctx = ConsumerContext(GroupSettings(offsets_retention_ms=10**12, retention_check_interval_ms=10**12))
        self.created = 0
        for name in NAMES[:3]:
            self._create(name)
        self.numbers = 0
        self.clients = [self._client() for _ in range(self.random.randint(1, 5))]
        self.faults = True
        self.unannounced: set[str] = set(NAMES)
        """Changed topics of which the group does not know yet."""
        self.unresolved = False
        self.late: list[ConsumerHeartbeat | Commit] = []
        """Requests on connections that their clients have closed."""
        self.reads: dict[Part, Consumer] = {}
        """What clients read that the group has not removed."""
        self.ctx.on_restart = self._restarted
        self.ctx.on_event = self._observe
        self.excused: set[str] = set()
        """Members that a late request may have removed."""
        self.revoking: dict[str, tuple[Any, int]] = {}
        """Member -> what it must give up, and since when."""
        self.seen: Counter[str] = Counter()

    def _create(self, name: str) -> None:
        self.created += 1
        self.ctx.change_topic(name, UUID(int=self.created), self.random.randint(1, 6))

    def _client(self) -> Consumer:
        self.numbers += 1
        static = self.random.random() < 0.3
        client = Consumer(
            self.ctx,
            self.random,
            member_id=f"m{self.numbers}",
            topics=tuple(self.random.sample(NAMES, self.random.choice([0, 1, 2, 4, 4]))),
            pattern=self.random.choice(PATTERNS),
            instance=f"i{self.numbers}" if static else None,
            rebalance_timeout_ms=self.random.choice([8_000, 30_000]),
            revocation_ms=self.random.choice([0, 0, 300, 3_000, 6_000]),
            adoption_ms=self.adoptions.choice([0, 0, 200, 3_000]),
            repeats=self.adoptions.random() < 0.5,
        )
        if not client.topics and client.pattern is None:
            client.topics = NAMES[:1]
        client.numbered = self.numbered
        return client

    # one step

    def run(self, steps: int) -> None:
        """Take these steps, settle, and check."""
        for _ in range(steps):
            self.step()
        self.settle()
        self.check_settled()

    def step(self) -> None:
        """Time passes, clients do what is due, and something happens."""
        self.ctx.sleep(self.random.choice([1, 50, 200, 500, 500, 2_000]))
        for client in self.random.sample(self.clients, len(self.clients)):
            self.act(client)
        self._broker()
        if self.faults:
            self._disturb()

    def _broker(self) -> None:
        """The broker looks at topics and patterns, sooner or later."""
        if self.unannounced and self.random.random() < 0.5:
            names, self.unannounced = self.unannounced, set()
            self.ctx.announce(*sorted(names))
        if self.random.random() < 0.3:
            self.ctx.resolve()

    def _disturb(self) -> None:
        dice = self.random.random()
        if dice < 0.15:
            self._fail_a_client(self.random.choice(self.clients))
        elif dice < 0.22:
            self._change_topic(self.random.choice(NAMES))
        elif dice < 0.28:
            client = self.random.choice(self.clients)
            client.topics = tuple(self.random.sample(NAMES, self.random.randint(1, 4)))
            client.pattern = self.random.choice(PATTERNS)
            client.full = True
        elif dice < 0.32:
            self.ctx.restart()
        elif dice < 0.37:
            self.ctx.crash = self.random.choice(["before", "after"])
        elif dice < 0.6 and self.late:
            self._deliver(self.random.choice(self._dangerous() or self.late))

    def _restarted(self) -> None:
        """Topics are to be looked at, and connections are gone with what was under way on them.

        Times of revocations start again.
        """
        self.unannounced = set(NAMES)
        self.late = []
        for member_id in self.revoking.keys() & self.ctx.member_ids:
            self.revoking[member_id] = (self.revoking[member_id][0], self.ctx.now_ms)

    def _dangerous(self) -> list[ConsumerHeartbeat | Commit]:
        """Late requests that might be taken for an acknowledgement."""
        if self.numbered:
            return [each for each in self.late if each.member_id in self.revoking]
        found: list[ConsumerHeartbeat | Commit] = []
        for each in self.late:
            if isinstance(each, ConsumerHeartbeat) and each.owned is not None:
                epochs = self._epochs(each.member_id)
                if each.member_epoch in epochs[1:] and each.member_epoch not in epochs[:1]:
                    found.append(each)
        return found

    def _fail_a_client(self, client: Consumer) -> None:
        match self.random.choice(["join", "die", "pause", "leave", "leave", "stick", "start again"]):
            case "join" if len(self.clients) < 7:
                self.clients.append(self._client())
            case "die":
                self._forget(client)
                self._successor(client)
            case "pause":
                client.paused_until_ms = self.ctx.now_ms + self.random.choice([1_000, 10_000, 60_000])
            case "leave" if client.joined:
                self._forget(client)
                self._send(client, client.leaving())
                if not self._successor(client) and self.random.random() < 0.5:
                    client.lose()
                    client.running = True
            case "start again" if client.instance is not None and client.running:
                # A new process starts while the former one still runs, or hangs.
                client.paused_until_ms = self.ctx.now_ms + self.random.choice([0, 20_000, 60_000])
                self.clients.append(self._successor_of(client))
            case "stick":
                client.stuck = not client.stuck

    def _successor(self, client: Consumer) -> bool:
        """A static instance runs as a new process."""
        if client.running or client.instance is None:
            return False
        self.clients.remove(client)
        self.clients.append(self._successor_of(client))
        return True

    def _successor_of(self, client: Consumer) -> Consumer:
        new = self._client()
        new.instance, new.topics, new.pattern = client.instance, client.topics, client.pattern
        return new

    def _forget(self, client: Consumer) -> None:
        client.running = False
        self._stop_reading(client)

    def _change_topic(self, name: str) -> None:
        facts = self.ctx.topics.get(name)
        if facts is None or self.random.random() < 0.3:
            self._create(name)
        elif self.random.random() < 0.5:
            self.ctx.change_topic(name, facts.topic_id, facts.partitions + self.random.randint(1, 3))
        else:
            self.ctx.change_topic(name, None)
        self.unannounced.add(name)

    # a client's turn

    def act(self, client: Consumer) -> None:
        """What is due: revoke, commit, send a heartbeat."""
        now_ms = self.ctx.now_ms
        if not client.running or now_ms < client.paused_until_ms:
            return
        if client.joined:
            client.reconcile()
            self._take_reads(client)
            if client.owned and self.random.random() < 0.1:
                self._commit(client)
        if now_ms >= client.next_beat_ms:
            self._beat(client)

    def _beat(self, client: Consumer) -> None:
        request = client.request()
        client.next_beat_ms = self.ctx.now_ms + 1_000
        dice = self.random.random() if self.faults else 1.0
        if dice < 0.05:
            # It is delayed on its way, and the client connects again.
            self.late = [*self.late[-20:], request]
            client.disconnect()
            client.unheard -= 1
            return
        ticket = self._send(client, request)
        if dice < 0.12 or ticket.lost:
            client.disconnect()
            if not ticket.lost:
                self.late = [*self.late[-20:], request]
            return
        if request.owned is not None and not self.numbered:
            # A copy is on its way.
            self.late = [*self.late[-20:], request]
        unheard = client.unheard
        client.take(ticket.result)
        self._check_fenced(client, ticket.result, unheard)
        if ticket.error is None and self.numbered:
            self._check_target(client)
        self._take_reads(client)

    def _send(self, client: Consumer, request: ConsumerHeartbeat) -> Ticket[ConsumerHeartbeatResult]:
        ticket: Ticket[ConsumerHeartbeatResult] = self.ctx.request(request)
        if not ticket.lost:
            self._answered(client, request, ticket.result)
        return ticket

    def _answered(self, client: Consumer, request: ConsumerHeartbeat, result: ConsumerHeartbeatResult) -> None:
        if result.error is not None:
            self.seen[result.error.name] += 1
            return
        client.heard_ms = self.ctx.now_ms

    def _deliver(self, request: ConsumerHeartbeat | Commit) -> None:
        """A request arrives when its client no longer waits for it."""
        epochs = self._epochs(request.member_id)
        if isinstance(request, ConsumerHeartbeat):
            if request.member_epoch < JOIN_EPOCH:
                self.excused.add(request.member_id)
            if not self.numbered and (request.member_epoch == JOIN_EPOCH or request.member_epoch in epochs[:1]):
                # No server could know that it is late.
                return
        ticket = self.ctx.request(request)
        if isinstance(request, ConsumerHeartbeat) and request.member_epoch > JOIN_EPOCH and not ticket.lost:
            assert request.member_epoch in epochs or ticket.error is not None, "an old epoch was accepted"
        for client in self.clients:
            if client.member_id == request.member_id:
                # With numbers, it has an effect only as long as the server does not know of a newer connection.
                client.unheard += int(client.full) if self.numbered else 2
                if isinstance(request, ConsumerHeartbeat) and not ticket.lost:
                    self._answered(client, request, ticket.result)
        self.seen["late"] += 1

    def _stored(self, member_id: str) -> StoredConsumer | None:
        return next((member for member in self._consumers() if member.member_id == member_id), None)

    def _consumers(self) -> list[StoredConsumer]:
        return [member for member in self.ctx.stored.fields if isinstance(member, StoredConsumer)]

    def _epochs(self, member_id: str) -> tuple[int, ...]:
        """The present and the previous epoch of a member, if it is one."""
        member = self._stored(member_id)
        return () if member is None else (member.epoch, member.previous_epoch)

    def _commit(self, client: Consumer) -> None:
        request = client.commit(self.random.randint(0, 10**6))
        if not request.positions:
            return
        ticket = self.ctx.request(request)
        if ticket.lost:
            client.disconnect()
            return
        accepted = is_accepted(ticket.result)
        self.seen["commit" if accepted else "refused commit"] += 1
        if client.member_id in self.ctx.member_ids:
            assert accepted, f"{client.member_id} owns what it may not commit: {ticket.result}"
        else:
            assert not accepted, f"{client.member_id} was removed and has committed"

    # the rules

    def _take_reads(self, client: Consumer) -> None:
        """No partition is read by two clients that the group has not removed."""
        for part in [part for part, reader in self.reads.items() if reader is client and part not in client.owned]:
            del self.reads[part]
        if client.member_id not in self.ctx.member_ids:
            return
        for part in client.owned:
            if part not in self.reads:
                self.seen["moved"] += 1
            reader = self.reads.setdefault(part, client)
            assert reader is client, f"{part} is read by {reader.member_id} and {client.member_id}"

    def _stop_reading(self, client: Consumer) -> None:
        for part in [part for part, reader in self.reads.items() if reader is client]:
            del self.reads[part]

    def _observe(self) -> None:
        """After each event: which members were removed, and which must give up what."""
        self._update_reads()
        before, self.revoking = self.revoking, {}
        for member in self._consumers():
            if member.revoking:
                since = before.get(member.member_id)
                same = since is not None and since[0] == member.revoking
                self.revoking[member.member_id] = since if since and same else (member.revoking, self.ctx.now_ms)

    def _update_reads(self) -> None:
        """Clients that the group has removed have no right to read. It must have had a reason."""
        members = self.ctx.member_ids
        for client in {id(reader): reader for reader in self.reads.values()}.values():
            if client.member_id not in members:
                self.seen["removed"] += 1
                self._check_removal(client)
                self._stop_reading(client)

    def _check_removal(self, client: Consumer) -> None:
        now_ms = self.ctx.now_ms
        if client.member_id in self.excused or not client.running:
            return
        silent_ms = now_ms - client.heard_ms
        waited_ms = now_ms - self.revoking[client.member_id][1] if client.member_id in self.revoking else 0
        assert silent_ms >= SESSION_MS or waited_ms >= client.rebalance_timeout_ms, (
            f"{client.member_id} was removed: silent for {silent_ms} ms, revoking for {waited_ms} ms"
        )

    def _check_fenced(self, client: Consumer, result: ConsumerHeartbeatResult, unheard: int) -> None:
        """One lost response fences no client that is a member."""
        if result.error is GroupError.FENCED_MEMBER_EPOCH:
            assert unheard > 1, f"{client.member_id} was fenced after {unheard} lost responses"
            self._stop_reading(client)

    def _check_target(self, client: Consumer) -> None:
        """A client that has a response knows what the group has assigned to it."""
        member = self._stored(client.member_id)
        assert member is not None
        lost = {(each.topic_id, partition) for each in member.revoking for partition in each.partitions}
        held = {
            (each.topic_id, partition)
            for each in member.held
            for partitions in each.granted.values()
            for partition in partitions
        }
        assert client.target == held - lost, f"{client.member_id} does not know its assignment"

    # the end

    def settle(self) -> None:
        """Faults end, and the clients that are left go on for three minutes."""
        self.faults = False
        self.ctx.crash = None
        for client in self.clients:
            client.stuck = False
            client.paused_until_ms = 0
            others = [other for other in self.clients if other.instance and other.instance == client.instance]
            client.running = client.running and client is (others[-1] if others else client)
            if not client.running:
                self._stop_reading(client)
        for _ in range(360):
            self.step()

    def check_settled(self) -> None:
        """Every partition with a subscriber is read, by the owner that the group has stored."""
        running = {client.member_id: client for client in self.clients if client.running}
        assert self.ctx.member_ids == running.keys()
        wanted: set[Part] = set()
        for client in running.values():
            assert client.epoch > 0
            assert client.owned == client.target
            names = {name for name in self.ctx.topics if name in client.topics}
            names |= {name for name in self.ctx.topics if client.pattern and name.startswith(client.pattern)}
            mine = {(self.ctx.topics[name].topic_id, each) for name in names for each in range(self._count(name))}
            assert client.owned <= mine
            wanted |= mine
        assert {part for client in running.values() for part in client.owned} == wanted
        assert len({client.epoch for client in running.values()}) <= 1
        assert sum(len(client.owned) for client in running.values()) == len(wanted)

    def _count(self, name: str) -> int:
        return self.ctx.topics[name].partitions
