"""Classic members and consumers in one group, from a seed: the group changes its kind while its members read.

To run one seed again: `simulate(seed)`.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.classic_processes import ClassicProcess
from tests.harness.consumer_processes import Consumer, Part
from tests.harness.consumer_world import NAMES, World
from tests.harness.simulations import check_noticed, noted

from headrace.groups import conversion
from headrace.groups.consumers import classic_members
from headrace.groups.consumers.membership import Membership
from headrace.groups.model import GroupKind

STEPS = 300
MOST_SEEDS = 60


class MixedWorld(World):
    """As `World`. Topics only grow: classic assignments have no topic IDs."""

    def __init__(self, seed: int) -> None:
        self.processes: list[ClassicProcess] = []
        super().__init__(seed)
        self.cooperative = self.random.random() < 0.5
        for client in self.clients:
            client.next_beat_ms = self.ctx.now_ms + self.random.choice([0, 20_000])
        for _ in range(2):
            self._fail_a_process()
        self.kinds: list[GroupKind] = []

    def step(self) -> None:
        """As in `World`, and classic members act."""
        super().step()
        for process in self.random.sample(self.processes, len(self.processes)):
            if process.running and self.ctx.now_ms >= process.paused_until_ms:
                process.act()
            self._take_classic(process)
        if self.kinds[-1:] != [self.ctx.whole.kind]:
            self.kinds.append(self.ctx.whole.kind)

    def _disturb(self) -> None:
        dice = self.random.random()
        if dice < 0.1:
            self._fail_a_process()
        elif dice < 0.2:
            self._fail_a_client(self.random.choice(self.clients))
        elif dice < 0.23:
            name = self.random.choice(NAMES[:3])
            facts = self.ctx.topics[name]
            self.ctx.change_topic(name, facts.topic_id, facts.partitions + 1)
            self.unannounced.add(name)
        elif dice < 0.26:
            self.ctx.restart()
        elif dice < 0.3:
            self.ctx.crash = self.random.choice(["before", "after"])
        elif dice < 0.33:
            self._exchange()

    def _exchange(self) -> None:
        """An application changes its protocol: its processes leave, others come."""
        for client in self.clients:
            if client.joined:
                self._forget(client)
                self._send(client, client.leaving())
        self.clients = [client for client in self.clients if client.running] or [self._client()]
        for client in self.clients:
            client.next_beat_ms = self.ctx.now_ms + self.random.choice([0, 10_000, 40_000])
        self._fail_a_process()

    def _fail_a_process(self) -> None:
        self.numbers += 1
        if len(self.processes) < 4:
            topics = tuple(self.random.sample(NAMES[:3], self.random.randint(1, 3)))
            self.processes.append(ClassicProcess(self.ctx, self.random, f"c{self.numbers}", topics, self.cooperative))
            return
        process = self.random.choice(self.processes)
        match self.random.choice(["die", "pause", "leave", "leave"]):
            case "die":
                self.processes.remove(process)
                self._release(process)
            case "pause":
                process.paused_until_ms = self.ctx.now_ms + self.random.choice([5_000, 60_000])
            case _:
                self.processes.remove(process)
                self._release(process)
                process.leave()

    # the rules: `reads` has readers of both kinds

    def _take_classic(self, process: ClassicProcess) -> None:
        readers: dict[Any, Any] = dict(self.reads)
        for part in [part for part, reader in readers.items() if reader is process and part not in process.owned]:
            del self.reads[part]
        if process.member_id in self._members():
            for part in process.owned:
                reader: Any = self.reads.setdefault(part, process)  # type: ignore[arg-type]
                assert reader is process, f"{part} is read by {reader.member_id} and {process.member_id}"

    def _release(self, process: ClassicProcess) -> None:
        readers: dict[Any, Any] = dict(self.reads)
        for part in [part for part, reader in readers.items() if reader is process]:
            del self.reads[part]

    def _members(self) -> set[str]:
        return self.ctx.member_ids | {member.member_id for member in self.ctx.stored.members}

    def _update_reads(self) -> None:
        members = self._members()
        for reader in {id(each): each for each in self.reads.values()}.values():
            if reader.member_id not in members:
                if isinstance(reader, Consumer):
                    self._check_removal(reader)
                self._stop_reading(reader)

    # the end

    def settle(self) -> None:
        """As in `World`."""
        for process in self.processes:
            process.paused_until_ms = 0
        super().settle()

    def check_settled(self) -> None:
        """Every partition with a subscriber is read once, and the group has the kind of its members."""
        consumers = [client for client in self.clients if client.running]
        readers: list[Any] = [*consumers, *self.processes]
        assert self._members() == {reader.member_id for reader in readers}
        if readers:
            assert self.ctx.whole.kind is (GroupKind.CONSUMER if consumers else GroupKind.CLASSIC)
        owned: list[Part] = [part for reader in readers for part in reader.owned]
        assert len(owned) == len(set(owned))
        wanted = {
            (facts.topic_id, each)
            for name, facts in self.ctx.topics.items()
            for each in range(facts.partitions)
            if any(name in reader.topics or (reader.pattern and name.startswith(reader.pattern)) for reader in readers)
        }
        if consumers:
            assert set(owned) == wanted


def simulate(seed: int, steps: int = STEPS) -> MixedWorld:
    world = MixedWorld(seed)
    with noted(seed):
        world.run(steps)
    return world


@pytest.mark.parametrize("seed", range(15))
def test_members_of_both_kinds_share_a_group(seed: int) -> None:
    simulate(seed)


def test_members_of_both_kinds_share_a_group_from_the_seed_of_the_run() -> None:
    seed = random.getrandbits(32)  # by the seed that pytest-randomly prints
    print(f"simulate(seed={seed})")
    simulate(seed)


def test_groups_change_their_kind_in_both_directions() -> None:
    kinds = [simulate(seed).kinds for seed in range(100, 106)]
    assert sum(len(each) - 1 for each in kinds) > 3


# Rules that are broken on purpose


def conversion_forgets_what_members_still_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversion, "owned_partitions", lambda _metadata: {})


def classic_members_need_not_acknowledge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_members, "_owned", lambda *_: ())


def classic_members_need_not_join_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_members, "heartbeat_error", lambda *_: None)


def conversion_forgets_assignments(patch: pytest.MonkeyPatch) -> None:
    original = Membership.restore

    def restore(group: Membership, header: Any, stored: Any) -> None:
        original(group, header, [replace(each, held=()) for each in stored])

    patch.setattr(Membership, "restore", restore)


@pytest.mark.parametrize(
    "mistake",
    [
        conversion_forgets_what_members_still_read,
        classic_members_need_not_acknowledge,
        classic_members_need_not_join_again,
        conversion_forgets_assignments,
    ],
    ids=lambda each: each.__name__,
)
def test_the_rules_notice_a_mistake(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    check_noticed(simulate, range(MOST_SEEDS))
