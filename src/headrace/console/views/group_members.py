"""Members of a group on its page: their partitions, and the targets of members of newer kinds."""

from collections.abc import Mapping, Sequence

import msgspec

from headrace.broker.group_lag import Share
from headrace.console import text
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.group import Group
from headrace.groups.model import GroupKind, TopicPartition

KINDS = {
    GroupKind.CLASSIC: "classic",
    GroupKind.CONSUMER: "consumer (KIP-848)",
    GroupKind.SHARE: "share",
}
"""Names on pages."""


class Progress(msgspec.Struct, frozen=True):
    """Epoch and target of a member."""

    epoch: int
    target: int | None
    """Number of partitions that it should have. None: the same as now."""
    is_classic: bool = False
    """Whether it uses the classic protocol, next to members of newer kinds."""


class Standing(msgspec.Struct, frozen=True):
    """Members of a group of a newer kind, by ID."""

    members: Mapping[str, Progress]
    next_owners: Mapping[TopicPartition, str]
    """Member IDs of partitions that change hands, or that wait for their first owner."""


def standing(machine: Group | None) -> Standing:
    """Return epochs and targets of members. For a classic group, nothing."""
    if machine is None or not isinstance(machine.part, ConsumerGroup):
        return Standing({}, {})
    described = machine.part.describe_members()
    members: dict[str, Progress] = {}
    coming: dict[TopicPartition, str] = {}
    for member in described.members:
        held = {each.topic_id: set(each.partitions) for each in member.assigned}
        due = [
            TopicPartition(each.topic, index)
            for each in member.target
            for index in each.partitions
            if index not in held.get(each.topic_id, ())
        ]
        target = sum(len(each.partitions) for each in member.target)
        has = sum(map(len, held.values()))
        aim = None if not due and target == has else target
        members[member.member_id] = Progress(member.epoch, aim, member.is_classic)
        coming |= dict.fromkeys(due, member.member_id)
    return Standing(members, coming)


def member_rows(shares: Sequence[Share], known: Standing, colours: Mapping[str, int]) -> list[dict[str, object]]:
    """Return the members for the template."""
    return [_row(each, known.members.get(each.member), colours.get(each.member, 0)) for each in shares]


def _row(share: Share, progress: Progress | None, colour: int) -> dict[str, object]:
    return {
        "client": text.name(share.client),
        "member": text.name(share.member),
        # Only instances have none.
        "host": text.name(share.host) or "OCI instance",
        "classic": progress is not None and progress.is_classic,
        "colour": colour,
        "count": len(share.partitions),
        "epoch": None if progress is None else progress.epoch,
        "target": None if progress is None else progress.target,
    }
