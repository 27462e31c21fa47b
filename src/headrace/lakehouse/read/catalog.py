"""Where archives lie, and opening them (`broker.partition.remote.Lake`). Imports delta-rs when it opens the first."""

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
    """All archives that can be reached from here. Credentials of object stores come from the environment."""

    kind = archives.KIND

    def described(self, document: bytes) -> Archive:
        """What an archive has written down. Raises ArchiveUnavailable."""
        try:
            found = archives.decode(document)
        except msgspec.MsgspecError as error:
            raise ArchiveUnavailable(f"what says where the archive lies cannot be read: {error}") from None
        return Archive(found.table, found.archived)

    def open(self, topic_id: str, table: str) -> "LakeTable":
        """A topic's archive; blocking. Raises ArchiveUnavailable."""
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ArchiveUnavailable(
                f"its archive {table} cannot be read without {' and '.join(missing)}: pip install 'headrace[lake]'"
            )
        from headrace.lakehouse.read.table import LakeTable  # noqa: PLC0415  # needs the extra, and takes a while

        return LakeTable(table, topic_id)
