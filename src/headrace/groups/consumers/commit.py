"""Checks of commits and of fetches of committed offsets in a consumer group.

A commit with an older epoch counts for partitions that the member has owned since then (KIP-1251).
"""

from headrace.groups.assignment.holdings import InstanceKey
from headrace.groups.consumers.membership import Membership
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, TxnOffsetCommit
from headrace.groups.model import TopicPartition


def check_commit(group: Membership, request: Commit | TxnOffsetCommit) -> GroupError | dict[TopicPartition, GroupError]:
    """Return why a commit in a group with members is rejected: all of it, or which partitions of it."""
    transactional = isinstance(request, TxnOffsetCommit)
    named = request.generation >= 0 or bool(request.member_id) or request.instance_id is not None
    if transactional and not named:
        # Versions below 3 name no member.
        return {}
    member = group.members.get(request.member_id)
    if member is None or (member.is_classic and request.generation != member.epoch):
        return GroupError.UNKNOWN_MEMBER_ID if member is None else GroupError.ILLEGAL_GENERATION
    if isinstance(request, Commit) and not (request.knows_member_epochs or member.is_classic):
        return GroupError.UNSUPPORTED_VERSION
    # As in Kafka, whose transactional and classic clients do not know the newer error.
    stale = GroupError.ILLEGAL_GENERATION if transactional or member.is_classic else GroupError.STALE_MEMBER_EPOCH
    if request.generation == member.epoch and not member.has_left:
        # An instance commits everything before an offset. An offset of another reader would skip its records in flight.
        return {partition: stale for partition in request.positions if _has_an_instance(group, partition)}
    if request.generation > member.epoch or member.has_left:
        return dict.fromkeys(request.positions, stale)
    return {
        partition: stale
        for partition in request.positions
        if not _had_since(group, member.member_id, partition, request.generation)
    }


def _had_since(group: Membership, member_id: str, partition: TopicPartition, epoch: int) -> bool:
    found = group.holdings.granted(partition.topic, partition.partition)
    return found is not None and found[0] == member_id and found[1] <= epoch


def _has_an_instance(group: Membership, partition: TopicPartition) -> bool:
    if not group.instances:
        return False
    found = group.holdings.granted(partition.topic, partition.partition)
    return found is not None and isinstance(found[0], InstanceKey)


def check_fetch(group: Membership, member_id: str | None, epoch: int) -> GroupError | None:
    """Return why a fetch of committed offsets is rejected. Without a member or an epoch, it never is."""
    if member_id is None and epoch < 0:
        return None
    member = group.members.get(member_id or "")
    if member is None:
        return GroupError.UNKNOWN_MEMBER_ID
    return None if epoch == member.epoch and not member.has_left else GroupError.STALE_MEMBER_EPOCH
