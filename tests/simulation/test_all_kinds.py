"""Instances, consumers and classic members in one group, from a seed: the group changes its kind while they read.

To run one seed again: `simulate(seed)`.
"""

from typing import Any

import pytest
from tests.harness.classic_processes import ClassicProcess
from tests.harness.consumer_processes import Consumer, Part
from tests.harness.consumer_world import NAMES
from tests.harness.simulations import noted
from tests.simulation.test_one_group import OneGroup

from headrace.groups.model import GroupKind

STEPS = 250
MOST_MEMBERS = 4


class AllKinds(OneGroup):
    """As `OneGroup`, with classic members. Topics only grow, and offsets are not looked at."""

    def __init__(self, seed: int) -> None:
        self.classic: list[ClassicProcess] = []
        super().__init__(seed)
        self.cooperative = self.random.random() < 0.5
        for client in self.clients:
            client.next_beat_ms = self.ctx.now_ms + self.random.choice([0, 20_000])
        for process in self.processes:
            process.next_ms = self.ctx.now_ms + self.random.choice([0, 5_000])
        for _ in range(2):
            self._fail_a_member()
        self.kinds: list[GroupKind] = []

    def step(self) -> None:
        """As in `OneGroup`, and classic members act."""
        super().step()
        for member in self.random.sample(self.classic, len(self.classic)):
            if member.running and self.ctx.now_ms >= member.paused_until_ms:
                member.act()
            self._take_classic(member)
        if self.kinds[-1:] != [self.ctx.whole.kind]:
            self.kinds.append(self.ctx.whole.kind)

    def _change_topic(self, name: str) -> None:
        facts = self.ctx.topics.get(name)
        if facts is not None:
            self.ctx.change_topic(name, facts.topic_id, facts.partitions + 1)
            self.unannounced.add(name)

    def _commit(self, client: Consumer) -> None:
        """Classic members commit nothing, so positions say nothing."""

    def _check_start(self, part: Part, offset: int) -> None:
        """See `_commit`."""

    def _disturb(self) -> None:
        if self.random.random() < 0.1:
            self._fail_a_member()
        else:
            super()._disturb()

    def _fail_a_member(self) -> None:
        self.numbers += 1
        if len(self.classic) < MOST_MEMBERS:
            topics = tuple(self.random.sample(NAMES[:3], self.random.randint(1, 3)))
            self.classic.append(ClassicProcess(self.ctx, self.random, f"c{self.numbers}", topics, self.cooperative))
            return
        member = self.random.choice(self.classic)
        match self.random.choice(["die", "pause", "leave", "leave"]):
            case "pause":
                member.paused_until_ms = self.ctx.now_ms + self.random.choice([5_000, 60_000])
            case how:
                self.classic.remove(member)
                self._stop_reading(member)  # type: ignore[arg-type]
                if how == "leave":
                    member.leave()

    # the rules: `reads` has readers of all kinds

    def _take_classic(self, member: ClassicProcess) -> None:
        for part in [part for part, reader in self.reads.items() if reader is member and part not in member.owned]:
            del self.reads[part]
        if member.member_id in self._members():
            for part in member.owned:
                reader: Any = self.reads.setdefault(part, member)
                assert reader is member, f"{part} is read by {reader.member_id} and {member.member_id}"

    def _members(self) -> set[str]:
        return self.ctx.member_ids | {member.member_id for member in self.ctx.stored.members}

    def _update_reads(self) -> None:
        super()._update_reads()
        members = self._members()
        for member in self.classic:
            if member.member_id not in members:
                self._stop_reading(member)  # type: ignore[arg-type]

    # the end

    def settle(self) -> None:
        """As in `World`."""
        for member in self.classic:
            member.paused_until_ms = 0
        super().settle()

    def check_settled(self) -> None:
        """Every partition with a subscriber has one owner, and the group has the kind of its members."""
        consumers = [client for client in self.clients if client.running]
        readers: list[Any] = [*consumers, *self.classic]
        assert self._members() == {reader.member_id for reader in readers}
        owned: list[Part] = [part for reader in readers for part in reader.owned]
        for section in self.ctx.stored.balanced:
            topic_id = self.ctx.topics[section.topic].topic_id
            owned += [(topic_id, index) for index, owner in enumerate(section.owners) if owner is not None]
        assert len(owned) == len(set(owned))
        if not (consumers or self.processes):
            assert self.ctx.whole.kind is (GroupKind.CLASSIC if self.classic else self.ctx.whole.kind)
            return
        assert self.ctx.whole.kind is GroupKind.CONSUMER
        assert set(owned) == {
            (facts.topic_id, each)
            for name, facts in self.ctx.topics.items()
            for each in range(facts.partitions)
            if any(name in each.topics or (each.pattern and name.startswith(each.pattern)) for each in readers)
            or any(process.topic == name for process in self.processes)
        }


def simulate(seed: int, steps: int = STEPS) -> AllKinds:
    world = AllKinds(seed)
    with noted(seed):
        world.run(steps)
    return world


@pytest.mark.parametrize("seed", range(10))
def test_members_of_all_kinds_share_a_group(seed: int) -> None:
    simulate(seed)


def test_groups_change_their_kind_with_all_of_them() -> None:
    assert sum(len(simulate(seed).kinds) - 1 for seed in range(1, 8)) > 3
