"""What Redis has of a native topic, as JSON: what DescribeConfigs shows as `headrace.native`.

`records` and `unfit` have a number for each partition: how many entries there are (null: its key is no stream), and how
many were met that no offset stands for. `groups` has for each Redis consumer group, by partition, how many entries are
`undelivered` (null: nobody knows) and `pending`, and how many `consumers` there are.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.broker.native.partition import NativePartition
from headrace.topics.native import GroupLag, NotAStream

_encode = msgspec.json.encode


async def describe(partitions: Sequence[NativePartition]) -> str:
    """Of all partitions of a topic, one after the other. Raises StorageUnavailable."""
    records: list[int | None] = []
    unfit = [partition.unfit for partition in partitions]
    groups: dict[str, bytearray] = {}
    for partition in partitions:
        try:
            extent = await partition.storage.extent(partition.place)
            lags = await partition.storage.group_lags(partition.place)
        except NotAStream:
            records.append(None)
            continue
        records.append(extent.length)
        for each in lags:
            # As text at once: there may be thousands of groups in thousands of partitions.
            groups.setdefault(each.name, bytearray()).extend(_member(partition.index, each))
    told = bytearray(b'{"records":%b,"unfit":%b,"groups":{' % (_encode(records), _encode(unfit)))
    for place, (name, members) in enumerate(groups.items()):
        told += b"%b%b:{" % (b"," if place else b"", _encode(name)) + members[1:] + b"}"
        await asyncio.sleep(0)
    return (told + b"}}").decode()


def _member(partition: int, lag: GroupLag) -> bytes:
    undelivered = "null" if lag.undelivered is None else lag.undelivered
    return (
        f',"{partition}":{{"undelivered":{undelivered},"pending":{lag.pending},"consumers":{lag.consumers}}}'.encode()
    )
