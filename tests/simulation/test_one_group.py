"""OCI instances and consumers of KIP-848 in one group, from a seed.

Both join, leave, hang and die. Consumers are slow to revoke, gets take time, and requests arrive late. The server
restarts, or dies before or after a write. To run one seed again: `simulate(seed)`.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.consumer_processes import Consumer, Part
from tests.harness.consumer_world import NAMES, World
from tests.harness.instance_processes import InstanceProcess
from tests.harness.simulations import check_noticed, noted

from headrace.groups.consumers import heartbeat
from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.consumers.instances import Instances
from headrace.groups.events import DropTopic
from headrace.groups.instances import rebalance
from headrace.groups.instances.section import Holding, Section
from headrace.groups.model import StoredConsumer, TopicPartition

STEPS = 250
MOST_SEEDS = 60
MOST_PROCESSES = 4


class OneGroup(World):
    """As `World`, with instances of the first two topics."""

    def __init__(self, seed: int) -> None:
        self.processes: list[InstanceProcess] = []
        self.reads: dict[Part, Any]
        self.ends: dict[Part, int] = {}
        """Where the first record is that no member has read."""
        self.starts: dict[tuple[str, Part], int] = {}
        """(Consumer, partition) -> its position."""
        self.mixed = 0
        """Number of steps after which both had partitions of a topic."""
        super().__init__(seed)
        for _ in range(self.random.randint(1, 3)):
            self._start_process()

    def step(self) -> None:
        """As in `World`, and instances act."""
        super().step()
        for process in self.random.sample(self.processes, len(self.processes)):
            if process.running and self.ctx.now_ms >= process.paused_until_ms and process.topic in self.ctx.topics:
                self._act(process)
        consumers = {part[0] for part, reader in self.reads.items() if isinstance(reader, Consumer)}
        self.mixed += any(part[0] in consumers for process in self.processes for part in process.parts())

    def _act(self, process: InstanceProcess) -> None:
        topic_id = self.ctx.topics[process.topic].topic_id
        if process.plan is not None:
            if not self.faults or self.random.random() < 0.4:
                for index, end in process.answer().items():
                    self._reach((topic_id, index), end)
        elif self.ctx.now_ms >= process.next_ms:
            for index, offset in process.begin().items():
                self._check_start((topic_id, index), offset)
        self._claim(process)

    def _check_start(self, part: Part, offset: int) -> None:
        assert offset <= self.ends.get(part, 0), f"records of {part} are skipped"

    def _reach(self, part: Part, end: int) -> None:
        self.ends[part] = max(self.ends.get(part, 0), end)

    def _disturb(self) -> None:
        dice = self.random.random()
        if dice < 0.12:
            self._fail_a_process()
        else:
            super()._disturb()

    def _start_process(self) -> None:
        self.numbers += 1
        name, timeout_ms = f"o{self.numbers}", self.random.choice([10_000, 30_000])
        topic = self.random.choice(NAMES[:2])
        self.processes.append(InstanceProcess(self.ctx, self.random, topic, name, timeout_ms))

    def _fail_a_process(self) -> None:
        process = self.random.choice(self.processes) if self.processes else None
        match self.random.choice(["start", "start", "die", "die", "pause", "start again", "stop consumers"]):
            case "start" if len(self.processes) < MOST_PROCESSES:
                self._start_process()
            case "die" if process is not None:
                self.processes.remove(process)
                self._release(process)
            case "pause" if process is not None:
                process.paused_until_ms = self.ctx.now_ms + self.random.choice([1_000, 10_000, 40_000])
            case "start again" if process is not None:
                self._release(process)
                process.forget()
            case "stop consumers" if self.random.random() < 0.3:
                for client in [each for each in self.clients if each.joined]:
                    self._forget(client)
                    self._send(client, client.leaving())
                self.clients = [each for each in self.clients if each.running] or [self._client()]
                for client in self.clients:
                    client.next_beat_ms = self.ctx.now_ms + 5_000

    def _change_topic(self, name: str) -> None:
        """Sections of a deleted topic are dropped before another one has its name."""
        facts = self.ctx.topics.get(name)
        super()._change_topic(name)
        now = self.ctx.topics.get(name)
        if facts is None or (now is not None and now.topic_id == facts.topic_id):
            return
        for process in self.processes:
            if process.topic == name:
                self._release(process)
                process.forget()
        # A server that crashes looks for deleted topics when it starts.
        while self._has_state_of(name, facts.topic_id):
            self.ctx.send(DropTopic(name, facts.topic_id))

    def _has_state_of(self, name: str, topic_id: Any) -> bool:
        positions = self.ctx.storage.positions.items()
        found = any(place.topic == name and position.topic_id == topic_id for place, position in positions)
        return found or any((each.topic, each.topic_id) == (name, topic_id) for each in self.ctx.stored.balanced)

    def _restarted(self) -> None:
        super()._restarted()
        for process in self.processes:
            process.interrupt()

    def _deliver(self, request: Any) -> None:
        """The server looks up topics when a request arrives."""
        if isinstance(request, ConsumerHeartbeat):
            known = {name: self.ctx.topics[name] for name in request.topics or () if name in self.ctx.topics}
            request = replace(request, facts=known)
        super()._deliver(request)

    def _commit(self, client: Consumer) -> None:
        """A consumer reads on from its position, and commits."""
        names = {facts.topic_id: name for name, facts in self.ctx.topics.items()}
        request = client.commit(0)
        for part in client.owned:
            place = TopicPartition(names.get(part[0], ""), part[1])
            if place in request.positions:
                start = self.starts[client.member_id, part]
                assert start <= self.ends.get(part, 0), f"{client.member_id} skips records of {place}"
                self.starts[client.member_id, part] = start + self.random.randint(0, 3)
                self._reach(part, self.starts[client.member_id, part])
                position = replace(request.positions[place], offset=self.starts[client.member_id, part])
                request.positions[place] = position
        if not request.positions:
            return
        ticket = self.ctx.request(request)
        if ticket.lost:
            client.disconnect()
        elif client.member_id in self.ctx.member_ids:
            assert all(error is None for error in ticket.result.partitions.values()), ticket.result
        else:
            assert ticket.result.error is not None or any(ticket.result.partitions.values())

    # the rules: `reads` has readers of both kinds

    def _take_reads(self, client: Consumer) -> None:
        before = {part for part, reader in self.reads.items() if reader is client}
        super()._take_reads(client)
        names = {facts.topic_id: name for name, facts in self.ctx.topics.items()}
        for part in client.owned - before:
            position = self.ctx.storage.positions.get(TopicPartition(names.get(part[0], ""), part[1]))
            known = position is not None and position.topic_id in (None, part[0])
            self.starts[client.member_id, part] = position.offset if known and position is not None else 0

    def _claim(self, process: InstanceProcess) -> None:
        parts = process.parts() if process.is_member else set()
        for part in [part for part, reader in self.reads.items() if reader is process and part not in parts]:
            del self.reads[part]
        for part in parts:
            reader: Any = self.reads.setdefault(part, process)
            assert reader is process, f"{part} is read by {reader} and {process.name}"

    def _release(self, process: InstanceProcess) -> None:
        for part in [part for part, reader in self.reads.items() if reader is process]:
            del self.reads[part]

    def _update_reads(self) -> None:
        self._check_owners()
        for process in self.processes:
            if not process.is_member:
                process.lose()
                self._release(process)
        members = self.ctx.member_ids
        for reader in {id(each): each for each in self.reads.values()}.values():
            if isinstance(reader, Consumer) and reader.member_id not in members:
                self._check_removal(reader)
                self._stop_reading(reader)

    def _check_owners(self) -> None:
        """No partition is stored with two owners."""
        held = {
            (grants.topic, grants.topic_id, partition)
            for member in self.ctx.stored.fields
            if isinstance(member, StoredConsumer)
            for grants in member.held
            for partitions in grants.granted.values()
            for partition in partitions
        }
        for section in self.ctx.stored.balanced:
            for index, owner in enumerate(section.owners):
                assert owner is None or (section.topic, section.topic_id, index) not in held

    # the end

    def settle(self) -> None:
        """As in `World`."""
        for process in self.processes:
            process.paused_until_ms = 0
        super().settle()

    def check_settled(self) -> None:
        """Every partition with a subscriber has one owner."""
        running = [client for client in self.clients if client.running]
        assert self.ctx.member_ids == {client.member_id for client in running}
        processes = [each for each in self.processes if each.topic in self.ctx.topics]
        assert all(process.is_member for process in processes)
        owned: list[Part] = [part for client in running for part in client.owned]
        for section in self.ctx.stored.balanced:
            if section.topic in self.ctx.topics:
                names = [owner.instance for owner in section.owners if owner is not None]
                assert {*names} <= {process.name for process in processes}
                topic_id = self.ctx.topics[section.topic].topic_id
                owned += [(topic_id, index) for index, owner in enumerate(section.owners) if owner is not None]
        assert len(owned) == len(set(owned))
        assert set(owned) == {
            (facts.topic_id, each)
            for name, facts in self.ctx.topics.items()
            for each in range(facts.partitions)
            if any(name in each.topics or (each.pattern and name.startswith(each.pattern)) for each in running)
            or any(process.topic == name for process in processes)
        }


def simulate(seed: int, steps: int = STEPS) -> OneGroup:
    world = OneGroup(seed)
    with noted(seed):
        world.run(steps)
    return world


@pytest.mark.parametrize("seed", range(15))
def test_instances_and_consumers_share_a_group(seed: int) -> None:
    simulate(seed)


def test_instances_and_consumers_share_a_group_from_the_seed_of_the_run() -> None:
    seed = random.getrandbits(32)  # by the seed that pytest-randomly prints
    print(f"simulate(seed={seed})")
    simulate(seed)


def test_both_have_partitions_of_a_topic_in_most_groups() -> None:
    assert sum(simulate(seed).mixed > 10 for seed in range(10)) >= 4


# Rules that are broken on purpose


def partitions_are_given_up_while_a_get_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holding, "in_flight", lambda *_: False)


def consumers_need_not_acknowledge(patch: pytest.MonkeyPatch) -> None:
    original = heartbeat.reconcile
    patch.setattr(heartbeat, "reconcile", lambda group, member, _owned, turn: original(group, member, (), turn))


def sections_join_without_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instances, "attach_section", _attach_without_owners(Instances.attach_section))


def _attach_without_owners(original: Any) -> Any:
    def attach(instances: Instances, section: Section) -> None:
        owners = [holding.owner for holding in section.holdings]
        for holding in section.holdings:
            holding.owner = None
        original(instances, section)
        for holding, owner in zip(section.holdings, owners, strict=True):
            holding.owner = owner

    return attach


def instances_do_not_notice_what_consumers_own(patch: pytest.MonkeyPatch) -> None:
    def grant(instances: Instances, section: Section, turn: Any) -> None:
        section.pool = None
        rebalance.rebalance(section, turn)
        section.pool = instances

    patch.setattr(Instances, "rebalance", grant)


def sections_stay_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instances, "attach", lambda *_: None)


def a_return_of_partitions_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instances, "rebalance", lambda instances, section, turn: instances.align_section(section, turn))


def free_partitions_are_not_granted_to_instances(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Instances, "align", lambda *_: None)


MISTAKES = [
    partitions_are_given_up_while_a_get_reads,
    consumers_need_not_acknowledge,
    sections_join_without_what_they_hold,
    instances_do_not_notice_what_consumers_own,
    sections_stay_alone,
    a_return_of_partitions_is_not_reported,
    free_partitions_are_not_granted_to_instances,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_the_rules_notice_a_mistake(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    check_noticed(simulate, range(MOST_SEEDS))
