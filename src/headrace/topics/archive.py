"""Names of the data that belongs to a topic's archive. Pure.

They contain the topic's id, so a topic created again under the same name has another archive. `storage.layout.archives`
has the table's location.
"""

import msgspec

STARTS = "archive-starts"
"""Kind of the documents with the first archived offset of a partition."""


class Archive(msgspec.Struct, frozen=True):
    """A topic's archive, as published by the archive."""

    table: str
    """Location of the table."""
    ends: dict[int, int]
    """Partition -> the offset below which all records are in the table."""


class Archived(msgspec.Struct, frozen=True):
    """Archived range of one partition."""

    start: int
    """The table has all records from here to `end`."""
    end: int
    """All records below it are or were in the table."""


def start_id(topic_id: str, partition: int) -> str:
    """Return the id of the document with a partition's first archived offset."""
    return f"{topic_id}:{partition}"


def begin_id(topic_id: str, partition: int) -> str:
    """Return the name of the Delta `txn` whose version is the offset from which the table has all records."""
    return f"headrace:{topic_id}:{partition}:start"


def app_id(topic_id: str, partition: int) -> str:
    """Return the name of the Delta `txn` whose version is the next offset to archive."""
    return f"headrace:{topic_id}:{partition}"
