"""Find and open archives (`broker.partition.remote.Lake`). delta-rs is imported for the first one."""

from typing import TYPE_CHECKING

import msgspec

from headrace.storage.layout import archives
from headrace.text import extras
from headrace.topics.archive import Archive
from headrace.topics.errors import ArchiveUnavailable

if TYPE_CHECKING:
    from headrace.lakehouse.read.table import LakeTable


class Lake:
    """All archives that this process can reach. Credentials come from the environment."""

    kind = archives.KIND

    def described(self, document: bytes) -> Archive:
        """Return the archive of a stored description. Raise ArchiveUnavailable."""
        try:
            found = archives.decode(document)
        except msgspec.MsgspecError as error:
            raise ArchiveUnavailable(f"what says where the archive lies cannot be read: {error}") from None
        return Archive(found.table, found.archived)

    def open(self, topic_id: str, table: str) -> "LakeTable":
        """Open a topic's archive; blocking. Raise ArchiveUnavailable."""
        missing = extras.missing(extras.MODULES["lake"])
        if missing:
            raise ArchiveUnavailable(extras.needs(f"its archive {table}", missing[0], "lake"))
        from headrace.lakehouse.read.table import LakeTable  # noqa: PLC0415  # needs the extra, and takes a while

        return LakeTable(table, topic_id)
