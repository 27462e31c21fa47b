"""OCI instances that share a group's partitions with its consumers (decision 0150).

While the group has consumers, its `Holdings` decide about all partitions. A section has copies of the owners and
targets of its instances. It reports what they gave up, and gets their grants and targets.
"""

from collections.abc import Callable, Iterable, Mapping

from headrace.groups import timers
from headrace.groups.assignment.holdings import InstanceKey, MemberKey, Topic
from headrace.groups.configs import Rules
from headrace.groups.consumers.classic_members import Facts
from headrace.groups.consumers.membership import Membership
from headrace.groups.consumers.target import aim
from headrace.groups.instances.group import BalancedGroup
from headrace.groups.instances.rebalance import rebalance
from headrace.groups.instances.section import ANOTHER, Holding, Section
from headrace.groups.turn import Turn


class Instances:
    """Sections of a consumer group (`section.Pool`)."""

    def __init__(self, group: Membership, rules: Callable[[], Rules]) -> None:
        self._group = group
        self._rules = rules
        self.sections: Mapping[str, BalancedGroup] = {}
        """By topic, with those that are not attached."""
        self._attached: dict[str, Section] = {}
        self._aligned = -1
        """`Holdings.changes` when the sections were last aligned."""

    @property
    def any(self) -> bool:
        """Whether there are instances."""
        return any(section.has_instances for section in self.sections.values())

    @property
    def are_settled(self) -> bool:
        """Whether no partition of a section waits for another owner."""
        return all(section.is_settled for section in self.sections.values())

    # Attached sections.

    def attach(self, facts: Facts) -> None:
        """Let the group decide about all sections. No epoch changes unless a topic has more partitions than known.

        `facts` looks up topics: sections of an older server have no topic ID.
        """
        for name, balanced in self.sections.items():
            section = balanced.section
            if self._attached.get(name) is not section:
                found = facts(name) if section.topic_id is None else None
                if found is not None:
                    section.topic_id = found.topic_id
                self.attach_section(section)
                self._aligned = -1

    def attach_section(self, section: Section) -> None:
        """Let the group decide about a section. Its instances become members with their partitions."""
        holdings = self._group.holdings
        current = holdings.current(section.topic)
        if section.topic_id is None and current is not None:
            section.topic_id = current.id
        self._attached[section.topic] = section
        section.pool = self
        topic = _topic(section)
        owners, aimed = holdings.shares_of(topic)
        for index, holding in enumerate(section.holdings):
            holding.taken = index in owners
            if holding.taken and holding.owner is not None:
                # An older server accepted consumers in such a group.
                holding.release()
        for name in section.instances:
            held = dict.fromkeys(section.held_by(name), 0)
            target = [index for index in section.targets_of(name) if index not in aimed]
            exists = current in (None, topic)
            key = InstanceKey(section.topic, name)
            self._group.instances.add(key)
            holdings.restore(key, (section.topic,), {topic: held}, {topic: target} if exists else {})
        if section.instances:
            self._know(section)

    def detach(self, turn: Turn) -> None:
        """Let sections decide alone: the group has no consumers, or no instances."""
        if not self._attached:
            return
        sections, self._attached = list(self._attached.values()), {}
        turn.cancel_timer(timers.target())
        if not self._group.members:
            self._group.forget_instances()
        for section in sections:
            section.pool = None
            for holding in section.holdings:
                holding.taken = False
                if holding.target is not None:
                    # It is stored, and a section alone finds its own.
                    section.changed()
            rebalance(section, turn)

    def forget(self, topic: str) -> None:
        """Remove the instances of a section that is dropped."""
        section = self._attached.pop(topic, None)
        if section is not None:
            section.pool = None
            for key in [each for each in self._group.instances if each.topic == topic]:
                self._leave(key)

    def rebalance(self, section: Section, turn: Turn) -> None:
        """Take over what a section's instances gave up, compute a target if needed, and grant free partitions."""
        topic, holdings = _topic(section), self._group.holdings
        names = {each.name for each in self._group.instances if each.topic == section.topic}
        for name in names - section.instances.keys():
            self._leave(InstanceKey(section.topic, name))
        for name in section.instances:
            key = InstanceKey(section.topic, name)
            if name in names:
                held = holdings.held(key).get(topic, set())
                given_up = {index for index in held if section.holdings[index].owner != name}
                if given_up:
                    holdings.give_up(key, {topic: given_up})
            else:
                self._group.instances.add(key)
                holdings.subscribe(key, (section.topic,))
        self._know(section)
        aim(self._group, self._rules(), turn)
        self.align_section(section, turn)

    def align(self, turn: Turn) -> None:
        """Grant free partitions to instances, and record in sections which partitions consumers own."""
        if self._aligned != self._group.holdings.changes:
            for section in self._attached.values():
                self.align_section(section, turn)
            self._aligned = self._group.holdings.changes

    def _leave(self, key: InstanceKey) -> None:
        self._group.instances.discard(key)
        self._group.holdings.leave(key)

    def _know(self, section: Section) -> None:
        """Notify the group of a section's partitions."""
        holdings, topic = self._group.holdings, _topic(section)
        current = holdings.current(section.topic)
        if current is None or (current == topic and holdings.count(topic) < len(section.holdings)):
            holdings.topic(topic.name, topic.id, len(section.holdings))

    def align_section(self, section: Section, turn: Turn) -> None:
        """As `align`, for one section."""
        holdings, topic = self._group.holdings, _topic(section)
        if holdings.current(section.topic) != topic:
            # It was deleted or recreated, and the section is about to be dropped.
            return
        section.grow(holdings.count(topic), turn)
        owners, targets = holdings.shares_of(topic)
        for index, holding in enumerate(section.holdings):
            owner, due = owners.get(index), targets.get(index)
            if isinstance(owner, str):
                if not holding.taken:
                    holding.take(section.moved())
            else:
                holding.taken = False
                if owner is None and isinstance(due, InstanceKey):
                    self._grant(section, index, due)
                    owner = due
            _aim(section, holding, owner, due, turn)

    def _grant(self, section: Section, index: int, due: InstanceKey) -> None:
        self._group.holdings.grant(due, {_topic(section): (index,)}, 0)
        section.holdings[index].grant(due.name, section.instances[due.name].incarnation, section.moved())

    # For tools.

    def shares(self) -> Iterable[tuple[InstanceKey, Topic, set[int], set[int]]]:
        """Return each instance with its topic, its partitions and its target."""
        for name, balanced in sorted(self.sections.items()):
            section = balanced.section
            for each in section.instances:
                held = set(section.held_by(each))
                yield InstanceKey(name, each), _topic(section), held, set(section.targets_of(each))


def _aim(section: Section, holding: Holding, owner: MemberKey | None, due: MemberKey | None, turn: Turn) -> None:
    target = None
    if due not in (None, owner):
        target = due.name if isinstance(due, InstanceKey) else ANOTHER
    if target != holding.target:
        section.changed()
        holding.aim(target, turn.ticks_ms)


def _topic(section: Section) -> Topic:
    return Topic(section.topic, section.topic_id)
