"""What is looked up for the page, by whoever can: of the storage and of the process."""

import msgspec


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How Redis is."""

    memory_bytes: int
    memory_max_bytes: int
    replicas: int
    append_file_bytes: int
    append_file_ok: bool


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the server's process and its disk are; None: that cannot be told here."""

    cpu_seconds: float
    started_seconds: float | None = None
    resident_bytes: int | None = None
    open_fds: int | None = None
    max_fds: int | None = None
    disk_free_bytes: int | None = None
    disk_size_bytes: int | None = None
