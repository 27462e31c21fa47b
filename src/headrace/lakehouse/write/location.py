"""Access a table's folder, local or in an object store, with delta-rs' storage options.

Driver and executors use the same options, and thus the same client for log and files.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from headrace.client.errors import StoreUnavailable, TableError, one_line
from headrace.lakehouse.paths import delta_problem, file_url, local_path

SCHEMES: Final = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "20s", "connect_timeout": "5s", "timeout": "60s"}
"""By default delta-rs waits three minutes for an unreachable store."""
_BUFFER: Final = 1 << 20
_REFUSED: Final = re.compile(
    r"accessdenied|access denied|forbidden|\b403\b|\b401\b|unauthorized|permission|"
    r"invalidaccesskeyid|signaturedoesnotmatch",
    re.IGNORECASE,
)
_ABSENT: Final = re.compile(r"nosuchbucket|bucket does not exist|no such bucket", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A table's folder. It is sent to the executors."""

    url: str
    """`file:///absolute/path`, or the URL of an object store, without a trailing slash."""
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """delta-rs' storage options: endpoint, region, keys."""

    @classmethod
    def of(cls, text: str, storage: Mapping[str, str] | None = None, *, schemes: Collection[str] = SCHEMES) -> "Place":
        """Return the place of a directory, a `file:` URL, or an object store's URL with one of `schemes`.

        Empty `schemes` accept all of delta-rs. Raise TableError for an unknown scheme or unsuitable path.
        """
        try:
            path = local_path(text)
        except ValueError as error:
            raise TableError(str(error)) from None
        if path is None:
            if schemes and text.partition("://")[0] not in schemes:
                raise TableError(f"{text}: tables lie in directories, or at {'://, '.join(schemes)}://")
            return cls(url=text.rstrip("/"), storage=tuple(sorted((storage or {}).items())))
        problem = delta_problem(path)
        if problem is not None:
            raise TableError(f"{str(path)!r}: {problem}")
        return cls(url=file_url(path))

    def sibling(self, suffix: str) -> "Place":
        """Append to the place's name."""
        return Place(url=self.url + suffix, storage=self.storage)

    @property
    def path(self) -> Path | None:
        """Return the directory, or None in an object store."""
        return local_path(self.url)

    @property
    def uri(self) -> str:
        """Return the URI for delta-rs."""
        return self.url if self.path is None else str(self.path)

    @property
    def name(self) -> str:
        """Return the place approximately as the user wrote it."""
        return self.uri

    @property
    def options(self) -> dict[str, str] | None:
        """Return delta-rs' storage options."""
        return None if self.path is not None else {**_PATIENCE, **dict(self.storage)}

    def delta(self) -> DeltaTable:
        """Return the Delta table at this place."""
        return DeltaTable(self.uri, storage_options=self.options)

    def make_table(
        self,
        columns: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        description: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a Delta table, unless another process has just done so."""
        DeltaTable.create(
            self.uri,
            columns,
            mode="ignore",
            partition_by=list(partition_by) or None,
            description=description,
            configuration=properties,
            raise_if_key_not_exists=False,
            storage_options=self.options,
        )

    def holds_table(self) -> bool:
        """Return whether the place has a Delta table."""
        return bool(DeltaTable.is_deltatable(self.uri, self.options))

    def files(self) -> pa_fs.FileSystem:
        """Return a file system with paths relative to the table."""
        path = self.path
        if path is not None:
            return pa_fs.SubTreeFileSystem(str(path), pa_fs.LocalFileSystem())
        return _store(self)

    def create(self, relative: str) -> Any:
        """Create a file with its folders."""
        path = self.path
        if path is not None:
            target = path / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            return target.open("wb")
        # delta-rs does not accept the unbuffered type.
        return self.files().open_output_stream(relative, buffer_size=_BUFFER)

    def finish(self, file: Any) -> int:
        """Close a file durably and return its size in bytes."""
        file.flush()
        if self.path is not None:
            os.fsync(file.fileno())
        size = int(file.tell())
        file.close()
        return size

    def abandon(self, file: Any, relative: str) -> None:
        """Delete an unfinished file."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            file.close()
        self.delete(relative)

    def write(self, relative: str, content: bytes) -> str:
        """Write a small file and return its location."""
        with self.create(relative) as file:
            file.write(content)
        return f"{self.uri}/{relative}"

    def delete(self, relative: str) -> None:
        """Delete a file. Errors are ignored: vacuum deletes it later."""
        path = self.path
        try:
            if path is not None:
                (path / relative).unlink(missing_ok=True)
            else:
                self.files().delete_file(relative)
        except OSError:
            return

    def check(self) -> None:
        """Write and delete a file, to find missing permissions early. Raise TableError, StoreUnavailable."""
        probe = f"_headrace/{uuid.uuid4().hex}"
        try:
            self.write(probe, b"Headrace looks whether it may write here.")
        except OSError as error:
            raise failed(self, "cannot be written", error) from error
        self.delete(probe)
        path = self.path
        if path is not None:
            with contextlib.suppress(OSError):  # another process may be checking, too
                (path / "_headrace").rmdir()


@lru_cache(maxsize=16)
def _store(place: Place) -> pa_fs.FileSystem:
    return pa_fs.PyFileSystem(DeltaStorageHandler(place.uri, place.options))


def failed(place: Place, what: str, error: Exception) -> TableError | StoreUnavailable:
    """Return TableError if a retry cannot help with an error of a store or delta-rs, else StoreUnavailable."""
    text = one_line(error)
    if _ABSENT.search(text):
        return TableError(f"{place.name} {what}: there is no such bucket ({_shortest(text)})")
    if _REFUSED.search(text) or isinstance(error, PermissionError):
        return TableError(f"{place.name} {what}: not allowed ({_shortest(text)}); check the keys and what they may do")
    if place.path is not None or (isinstance(error, DeltaError) and "http" not in text.lower()):
        return TableError(f"{place.name} {what}: {text}")
    return StoreUnavailable(f"{place.name} {what}: {_shortest(text)}")


def _shortest(text: str) -> str:
    code = re.search(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text)
    if code:
        return f"{code[1]}: {code[2]}"
    return text if len(text) <= 240 else f"{text[:80]} ... {text[-150:]}"
