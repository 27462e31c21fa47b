"""All message classes. `stubs` writes messages.pyi for type checkers."""

from headrace.protocol.message import Chunk, Message, Records, build_message
from headrace.protocol.notation import MessageTable, parse
from headrace.protocol.tables import (
    acls,
    cluster,
    consumer_groups,
    fetch,
    groups,
    offsets,
    produce,
    quotas,
    replicas,
    shares,
    topics,
    transactions,
    users,
)

TABLES: list[MessageTable] = [
    table
    for module in (
        produce,
        fetch,
        cluster,
        groups,
        consumer_groups,
        offsets,
        transactions,
        topics,
        replicas,
        users,
        acls,
        quotas,
        shares,
    )
    for table in parse(module.TABLE)
]

_classes = {table.root.name: build_message(table, __name__) for table in TABLES}
globals().update(_classes)

REQUESTS: dict[int, type[Message]] = {cls.API_KEY: cls for name, cls in _classes.items() if name.endswith("Request")}
RESPONSES: dict[int, type[Message]] = {cls.API_KEY: cls for name, cls in _classes.items() if name.endswith("Response")}

__all__ = ["REQUESTS", "RESPONSES", "TABLES", "Chunk", "Message", "Records", *_classes]  # noqa: PLE0604
