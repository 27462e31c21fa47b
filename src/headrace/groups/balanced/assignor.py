"""Who shall have which partition: shares that differ by one at most, with as few moves as possible.

Pure and deterministic: the same members, holders and intentions give the same answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def quotas(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> dict[str, int]:
    """How many partitions each member is due: all the same number, some one more.

    One more goes to those that hold most, then to those that most are on the way to, then to those that joined first:
    so a newcomer moves nothing that need not move.

    Args:
        members: in the order in which they joined; at least one.
        holders: by partition, who has it.
        intended: partition -> who shall have it next, as decided before.
    """
    held = Counter(holders)
    coming = Counter(intended.values())
    least, rest = divmod(len(holders), len(members))
    ranked = sorted(members, key=lambda name: (-held[name], -coming[name]))
    return {name: least + (rank < rest) for rank, name in enumerate(ranked)}


def share_out(members: Sequence[str], holders: Sequence[str | None], intended: Mapping[int, str]) -> list[str]:
    """The member that shall have each partition; arguments as for `quotas`.

    A member keeps what it holds up to its quota, and rather what nobody waits for. What was intended stays so where
    it can. The rest goes to whoever lacks most.
    """
    left = quotas(members, holders, intended)
    shall: list[str | None] = [None] * len(holders)
    for partition in sorted(range(len(holders)), key=lambda partition: (partition in intended, partition)):
        holder = holders[partition]
        if holder is not None and left.get(holder, 0) > 0:
            shall[partition] = holder
            left[holder] -= 1
    for partition, member in sorted(intended.items()):
        if shall[partition] is None and left.get(member, 0) > 0:
            shall[partition] = member
            left[member] -= 1
    # Free ones first: what somebody still holds is of no use to its next owner yet.
    for partition in sorted(range(len(holders)), key=lambda partition: (holders[partition] is not None, partition)):
        if shall[partition] is None:
            member = max(members, key=lambda name: left[name])
            shall[partition] = member
            left[member] -= 1
    return [member for member in shall if member is not None]
