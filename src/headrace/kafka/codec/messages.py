"""Every message class, built from the tables. Type checkers read messages.pyi, which `codec.stubs` writes."""

from headrace.kafka.codec.message import Chunk, Message, Records, build_message
from headrace.kafka.codec.notation import MessageTable, parse
from headrace.kafka.codec.tables import access, cluster, fetch, groups, positions, produce, quotas, topics, users

TABLES: list[MessageTable] = [
    table
    for module in (produce, fetch, cluster, groups, positions, topics, users, access, quotas)
    for table in parse(module.TABLE)
]

_classes = {table.root.name: build_message(table, __name__) for table in TABLES}
globals().update(_classes)

REQUESTS: dict[int, type[Message]] = {cls.API_KEY: cls for name, cls in _classes.items() if name.endswith("Request")}
RESPONSES: dict[int, type[Message]] = {cls.API_KEY: cls for name, cls in _classes.items() if name.endswith("Response")}

__all__ = ["REQUESTS", "RESPONSES", "TABLES", "Chunk", "Message", "Records", *_classes]  # noqa: PLE0604
