"""Names by which the server, the archive and readers find what belongs to a topic's archive. Pure.

Where the table lies is in a document of its own (`storage.layout.archives`), under the topic's id: a topic that is
created again under the same name is another one, and has another archive or none.
"""

import msgspec

STARTS = "archive-starts"
"""Kind of the documents that say where the archived records of a partition begin: below it nothing is read."""


class Archive(msgspec.Struct, frozen=True):
    """A topic's archive, as the archive itself has written it down."""

    table: str
    """Where it lies."""
    ends: dict[int, int]
    """By partition the offset before which every record is in the table."""


class Archived(msgspec.Struct, frozen=True):
    """What a table has of one partition."""

    start: int
    """The first offset that is in it."""
    end: int
    """Every record before it is in the table, or was there."""


def start_id(topic_id: str, partition: int) -> str:
    """Id of the document with the offset at which a partition's archived records begin; its value is the number."""
    return f"{topic_id}:{partition}"


def app_id(topic_id: str, partition: int) -> str:
    """Name of the Delta `txn` whose version is the next offset to archive."""
    return f"headrace:{topic_id}:{partition}"
