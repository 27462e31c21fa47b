"""An append-only file written by hand, as a Valkey would write it, and what a reader finds in it."""

from pathlib import Path
from typing import Any

import pytest
from tests.harness.aof import batch, places, xadd

from headrace.storage.layout import entries
from headrace.storage.redis.protocol import encode
from headrace.storage.valkey import aof
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.storage.valkey.datadir import MANIFEST
from headrace.topics.model import StoredBatch

KEY = b"headrace:t:0"
BEGINS = 10
"""Where tests begin to count: what is asked first of a log is asked of Valkey."""
FILE = "appendonly.aof.1.incr.aof"


class Written:
    """A file as a Valkey would have written it."""

    def __init__(self, folder: Path, work: int = aof.SLICE_WORK) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.path.touch()
        self.name(FILE)
        made = AppendOnlyFile.open(folder, work)
        if made is None:
            pytest.skip("this disk lets nobody read without waiting for it")
        self.file = made
        self.write("SELECT", 0)
        self.begin()

    def begin(self, key: bytes = KEY, term: int = 1) -> None:
        """The first batch that is known of a log."""
        self.write(*xadd(key, f"{term}-{BEGINS}", batch(0, BEGINS)))

    def name(self, file: str, sequence: int = 1) -> None:
        self.write_manifest(f"file appendonly.aof.1.base.rdb seq 1 type b\nfile {file} seq {sequence} type i\n")

    def write_manifest(self, text: str) -> None:
        # As Valkey does it: there is always a whole one.
        new = self.folder / "manifest.new"
        new.write_text(text)
        new.replace(self.folder / MANIFEST)

    def write_bytes(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def write(self, *arguments: Any) -> None:
        self.write_bytes(encode(arguments))

    def append(self, term: int, base: int, span: int = 1, size: int = 10) -> None:
        self.write(*xadd(KEY, f"{term}-{BEGINS + base + span}", batch(BEGINS + base, span, size)))

    async def find(
        self, offset: int, count: int = 100, *, term: int = 1, key: bytes = KEY, last: entries.EntryId = entries.LAST_ID
    ) -> list[StoredBatch] | None:
        return await self.file.read(key, (term, BEGINS + offset + 1), last, count)

    async def read(
        self, offset: int, count: int = 100, *, term: int = 1, key: bytes = KEY, last: entries.EntryId = entries.LAST_ID
    ) -> list[int] | None:
        found = places(await self.find(offset, count, term=term, key=key, last=last))
        return None if found is None else [each - BEGINS for each in found]
