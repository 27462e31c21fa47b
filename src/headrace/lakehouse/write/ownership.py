"""Record in an archive's table which topic it belongs to, and refuse the table of another one.

Two properties of the Delta table name the topic and the server (its cluster ID). A table without them belongs to the
topics in its files. A recreated topic is the same owner: its records have another `topicId`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.client.errors import TableError
from headrace.lakehouse.write.table import ArchiveTable

TOPIC: Final = "headrace.topic"
CLUSTER: Final = "headrace.cluster-id"
_MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Owner:
    """A topic of a server."""

    topic: str
    cluster_id: str = ""
    """Empty if the storage has none yet."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the properties of its table."""
        return {TOPIC: self.topic} | ({CLUSTER: self.cluster_id} if self.cluster_id else {})


def claim(table: ArchiveTable, owner: Owner, *, shared: bool) -> str:
    """Make a table that belongs to no topic the owner's. Return a line for the user if others have records in it.

    Raise TableError for the table of another owner, unless `shared`.
    """
    snapshot = table.snapshot()
    others = sorted(snapshot.topics() - {owner.topic})
    noted = table.noted(TOPIC)
    if noted is None and not others:
        table.note(owner.properties, once=True)
        noted = table.noted(TOPIC)
    belongs = _other(table, owner, noted, others if owner.topic not in snapshot.topics() else [])
    if belongs and not shared:
        raise TableError(
            f"{table.place.name} belongs to {belongs}: name another table, or add the records of {owner.topic!r} "
            "with --share-table"
        )
    if others:
        named = ", ".join(map(repr, others[:_MOST_NAMED]))
        return (
            f"careful: {table.place.name} has records of {named} as well; those of {owner.topic!r} are added. "
            "The column topic distinguishes them"
        )
    if belongs:
        return f"careful: {table.place.name} belongs to {belongs}; the records of {owner.topic!r} are added"
    return ""


def _other(table: ArchiveTable, owner: Owner, noted: str | None, others: list[str]) -> str:
    """Return whom the table belongs to, empty if it is the owner."""
    if noted is not None and noted != owner.topic:
        return f"topic {noted!r}"
    if noted is None and others:
        return f"topic {others[0]!r}"
    cluster = table.noted(CLUSTER)
    if cluster is not None and owner.cluster_id and cluster != owner.cluster_id:
        return f"topic {owner.topic!r} of another server (cluster ID {cluster}, this one has {owner.cluster_id})"
    return ""
