"""Topics that moved to another virtual cluster and kept their streams: where that is written down."""

from headrace.broker.ports import DocumentStorage
from headrace.broker.stored_values import readable

KIND = "moved-topics"
"""The kind of the documents, which say nothing but their ids. Written before the move: a name too many does no harm."""


def entry(cluster: str, topic: str) -> str:
    """The id of the document that tells of a topic that was in a cluster."""
    return f"{cluster}/{topic}"


async def load(documents: DocumentStorage) -> set[str]:
    """All that have moved. Raises StorageUnavailable."""
    return set(await readable(documents, KIND, _name))


def _name(name: str, _: bytes) -> str:
    name.encode()  # raises ValueError for what is no text
    return name
