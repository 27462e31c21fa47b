"""Read row groups of an archive's Parquet files, with a cache per process."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS: Final = ("key", "value", "offset", "timestamp", "timestampType", "headers")
_MOST_FILES: Final = 64
_MOST_GROUP: Final = 256 << 20
_GROUP_BYTES: Final = 64 << 20
"""Bytes of all cached row groups. A larger group is read but not cached."""


class Group(NamedTuple):
    """A row group of a file."""

    place: int
    first: int
    last: int
    latest_us: int


class DataFile:
    """A file with records in offset order."""

    def __init__(self, name: tuple[str, str], opened: Any) -> None:
        self._name = name
        self._file = pq.ParquetFile(opened, pre_buffer=True)
        self._groups = [self._group(index) for index in range(self._file.metadata.num_row_groups)]

    def _group(self, index: int) -> Group:
        metadata = self._file.metadata.row_group(index)
        bounds = {}
        for place in range(metadata.num_columns):
            column = metadata.column(place)
            if column.path_in_schema in {"offset", "timestamp"}:
                if not column.is_stats_set or not column.statistics.has_min_max:
                    raise ValueError(f"{self._name[1]} has no statistics of {column.path_in_schema}")
                bounds[column.path_in_schema] = column.statistics
        if len(bounds) != 2:
            raise ValueError(f"{self._name[1]} has no offsets, or no timestamps")
        latest = pa.scalar(bounds["timestamp"].max, pa.timestamp("us", tz="UTC")).value
        return Group(index, bounds["offset"].min, bounds["offset"].max, latest)

    def groups_from(self, offset: int) -> list[Group]:
        """Return row groups with records at or after `offset`."""
        return [group for group in self._groups if group.last >= offset]

    def rows(self, group: Group) -> pa.Table:
        """Return the records of a row group."""
        return FILES.group((*self._name, group.place), lambda: self._read(group, COLUMNS))

    def scan(self, group: Group, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a row group, uncached."""
        return self._read(group, columns)

    def _read(self, group: Group, columns: Sequence[str]) -> pa.Table:
        size = self._file.metadata.row_group(group.place).total_byte_size
        if size > _MOST_GROUP:
            raise ValueError(f"{self._name[1]} has a row group of {size} bytes, more than any that an archive writes")
        return self._file.read_row_group(group.place, columns=list(columns), use_threads=False).combine_chunks()

    def first_at(self, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range at or after `timestamp` (ms)."""
        for group in self.groups_from(start):
            if group.first < end and group.latest_us >= timestamp * 1000:
                offsets, times = self._places(group)
                found = np.flatnonzero((times >= timestamp * 1000) & (offsets >= start) & (offsets < end))
                if len(found):
                    return int(offsets[found[0]]), int(times[found[0]] // 1000)
        return None

    def latest(self, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range with the largest time."""
        best: tuple[int, int] | None = None
        for group in self.groups_from(start):
            if group.first < end and (best is None or group.latest_us > best[1] * 1000):
                offsets, times = self._places(group)
                inside = np.flatnonzero((offsets >= start) & (offsets < end))
                if len(inside):
                    place = inside[np.argmax(times[inside])]
                    if best is None or times[place] // 1000 > best[1]:
                        best = int(offsets[place]), int(times[place] // 1000)
        return best

    def _places(self, group: Group) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        read = self._read(group, ("offset", "timestamp"))
        return read["offset"].to_numpy(), pc.cast(read["timestamp"], pa.int64()).to_numpy()


class Files:
    """A thread-safe LRU cache of open files and row groups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[str, str], DataFile] = OrderedDict()
        self._groups: OrderedDict[tuple[str, str, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def open(self, table: str, path: str, filesystem: Any) -> DataFile:
        """Return a file of a table.

        Raise OSError if it cannot be opened, or ValueError, ArrowException if it is not an archive's.
        """
        name = table, path
        with self._lock:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
                return found
        opened = DataFile(name, filesystem.open_input_file(path))
        with self._lock:
            self._files[name] = opened
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        return opened

    def group(self, name: tuple[str, str, int], read: Any) -> pa.Table:
        """Return a cached row group, or call `read`."""
        with self._lock:
            found = self._groups.get(name)
            if found is not None:
                self._groups.move_to_end(name)
                return found
        rows = read()
        with self._lock:
            if rows.nbytes <= _GROUP_BYTES // 2 and name not in self._groups:
                self._groups[name] = rows
                self._bytes += rows.nbytes
                while self._bytes > _GROUP_BYTES:
                    self._bytes -= self._groups.popitem(last=False)[1].nbytes
        return rows


FILES = Files()
"""The cache of this process."""
