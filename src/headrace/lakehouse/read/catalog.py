"""Find and open archives (`broker.partition.remote.Lake`). delta-rs is imported for the first one."""

import importlib.util
from typing import TYPE_CHECKING

import msgspec

from headrace.storage.layout import archives
from headrace.topics.archive import Archive
from headrace.topics.errors import ArchiveUnavailable

if TYPE_CHECKING:
    from headrace.lakehouse.read.table import LakeTable

_NEEDED = ("deltalake", "pyarrow")


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
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ArchiveUnavailable(
                f"its archive {table} cannot be read without {' and '.join(missing)}: pip install 'headrace[lake]'"
            )
        from headrace.lakehouse.read.table import LakeTable  # noqa: PLC0415  # needs the extra, and takes a while

        return LakeTable(table, topic_id)
