"""What members of a classic group ask of a `GroupCoordinator`."""

import asyncio

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.groups.effects import JoinResult, SyncResult
from headrace.groups.events import Commit, Join, Sync
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.testing.clock import ManualClock

PARTITION = TopicPartition("t", 0)


def join(member_id: str = "") -> Join:
    return Join(
        token=object(),
        member_id=member_id,
        instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", b""),),
        new_member_id="c-1",
        member_id_required=False,
        skip_assignment_supported=False,
    )


def commit(offset: int, generation: int = -1, member_id: str = "") -> Commit:
    return Commit(
        token=object(),
        generation=generation,
        member_id=member_id,
        instance_id=None,
        positions={PARTITION: OffsetAndMetadata(offset=offset)},
    )


async def stable(table: GroupCoordinator, clock: ManualClock, group: str = "g") -> JoinResult:
    """A group with one member, assigned."""
    joining = asyncio.ensure_future(table.request(group, join()))
    await asyncio.sleep(0)
    clock.advance(100)
    joined = await joining
    assert isinstance(joined, JoinResult)
    synced = await table.request(
        group,
        Sync(
            token=object(),
            generation=joined.generation,
            member_id=joined.member_id,
            instance_id=None,
            protocol_type=None,
            protocol=None,
            assignments={joined.member_id: b"all"},
        ),
    )
    assert isinstance(synced, SyncResult)
    assert synced.assignment == b"all"
    return joined
