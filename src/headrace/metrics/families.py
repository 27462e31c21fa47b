"""All metrics, and Prometheus' text format (version 0.0.4) with a limit on series.

`docs/metrics.md` is generated from this list.
"""

import re
from enum import Enum
from hashlib import sha256

import msgspec

from headrace.metrics.counters import TICKS, Durations


class Kind(Enum):
    """Type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(msgspec.Struct, frozen=True):
    """A metric with all its series."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str


INFO = Family("headrace_info", Kind.GAUGE, ("version",), "Always 1. The label is the version.")


SERIES_EXCESS = Family(
    "headrace_metrics_series_excess",
    Kind.GAUGE,
    (),
    "Series omitted from this page because of metrics.max.series.",
)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST_VALUE = 256
_DIGEST = 16
_ODD = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff\\ufffd]")
_FIRST, _LAST = 7, 26
_BOUNDS = tuple(repr((1 << slot) / TICKS) for slot in range(_FIRST, _LAST + 1))
"""From 1/8 ms to a minute, each double the previous one."""
HISTOGRAM_SERIES = len(_BOUNDS) + 3
"""Series of one histogram: buckets, sum and count."""


def label(value: str) -> str:
    """Return the quoted value of a label.

    Group names may have any character. Lone surrogates, control characters and U+FFFD become U+FFFD and their code, so
    that different names stay different. Very long names end in a digest.
    """
    tail = ""
    if len(value) > _LONGEST_VALUE:
        # No code begins with `#`: a name that was cut is like no other.
        tail = "\ufffd#" + sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        value = value[: _LONGEST_VALUE - _DIGEST]
    if _ODD.search(value) is not None:
        value = _ODD.sub(lambda found: f"\ufffd{ord(found[0]):04x}", value)
    return '"' + value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + tail + '"'


def labels(**values: str) -> str:
    """Return labels in braces. Empty ones are omitted, which means the same."""
    inside = ",".join(f"{name}={label(value)}" for name, value in values.items() if value)
    return f"{{{inside}}}" if inside else ""


class Exposition:
    """A page of metrics under construction."""

    def __init__(self, most_series: int) -> None:
        """Start empty. Series above `most_series` are only counted."""
        self._parts: list[str] = []
        self._left = most_series
        self._excess = 0
        self._family: Family | None = None
        self._begun: set[str] = set()

    def sample(self, family: Family, value: float, text: str = "") -> None:
        """Add a series with the labels `text`. Raises ValueError if another metric came between two of the same."""
        if self._room(family, 1):
            self._parts.append(f"{family.name}{text} {value}\n")

    def histogram(self, family: Family, durations: Durations, text: str = "") -> None:
        """Add a histogram, as `sample`."""
        if not self._room(family, HISTOGRAM_SERIES):
            return
        name, parts = family.name, self._parts
        inside = f"{text[1:-1]}," if text else ""
        slots = tuple(durations.slots)
        below = sum(slots[:_FIRST])
        for slot, bound in enumerate(_BOUNDS, _FIRST):
            below += slots[slot]
            parts.append(f'{name}_bucket{{{inside}le="{bound}"}} {below}\n')
        count = sum(slots)
        parts.append(f'{name}_bucket{{{inside}le="+Inf"}} {count}\n')
        parts.append(f"{name}_sum{text} {durations.ticks / TICKS}\n{name}_count{text} {count}\n")

    def _room(self, family: Family, series: int) -> bool:
        if self._left < series:
            self._excess += series
            return False
        self._left -= series
        if family is not self._family:
            self._begin(family)
        return True

    def _begin(self, family: Family) -> None:
        if family.name in self._begun:
            raise ValueError(f"the series of {family.name} do not stand together")
        self._begun.add(family.name)
        self._family = family
        self._parts.append(f"# HELP {family.name} {family.doc}\n# TYPE {family.name} {family.kind.value}\n")

    def finish(self) -> bytes:
        """Return the page. Its last metric is the number of omitted series."""
        self._left = max(self._left, 1)
        self.sample(SERIES_EXCESS, self._excess)
        return "".join(self._parts).encode()


REQUESTS = Family("headrace_requests_total", Kind.COUNTER, ("listener", "api"), "Requests with a response.")
ERRORS = Family(
    "headrace_request_errors_total",
    Kind.COUNTER,
    ("listener", "api", "error"),
    "Responses with an error at least once, by its name in Kafka or OCI Streaming. As in Kafka, codes of the normal "
    "flow count, such as MEMBER_ID_REQUIRED and REBALANCE_IN_PROGRESS.",
)
DURATION = Family(
    "headrace_request_duration_seconds",
    Kind.HISTOGRAM,
    ("listener", "api"),
    "Time from starting a request to writing its response to the socket, without the time that a Fetch waits for "
    "records. It includes the wait of a JoinGroup or SyncGroup for other members.",
)
CONNECTIONS = Family("headrace_connections", Kind.GAUGE, ("listener",), "Open connections.")
LOOP_DELAY = Family(
    "headrace_event_loop_delay_seconds",
    Kind.HISTOGRAM,
    (),
    "Delay of the event loop, measured ten times per second: the longest wait of any request.",
)

RECORDS_IN = Family(
    "headrace_topic_records_in_total", Kind.COUNTER, ("topic",), "Records that were stored and acknowledged."
)
BYTES_IN = Family(
    "headrace_topic_bytes_in_total",
    Kind.COUNTER,
    ("topic",),
    "Bytes of these records, as batches in the log.",
)
RECORDS_OUT = Family(
    "headrace_topic_records_out_total",
    Kind.COUNTER,
    ("topic",),
    "Records sent to consumers; to Kafka clients in whole batches.",
)
BYTES_OUT = Family(
    "headrace_topic_bytes_out_total",
    Kind.COUNTER,
    ("topic",),
    "Bytes sent to consumers: record batches to Kafka clients, keys and values to OCI clients.",
)
LOG_START = Family(
    "headrace_log_start_offset",
    Kind.GAUGE,
    ("topic", "partition"),
    "Log start offset: the first offset that can be read.",
)
LOG_END = Family(
    "headrace_log_end_offset", Kind.GAUGE, ("topic", "partition"), "Log end offset: the offset of the next record."
)

GROUPS = Family(
    "headrace_groups",
    Kind.GAUGE,
    ("type", "state"),
    "Groups that this broker coordinates, by type and state as in ListGroups. A group with only OCI instances is "
    "`classic` until a consumer joins.",
)
GROUP_MEMBERS = Family("headrace_group_members", Kind.GAUGE, ("group",), "Members, or OCI instances, of a group.")
GROUP_REBALANCES = Family(
    "headrace_group_rebalances_total",
    Kind.COUNTER,
    ("group",),
    "Generations of a group, one per rebalance. For a consumer group or a share group, its epochs.",
)
GROUP_ASSIGNMENTS = Family(
    "headrace_group_assignment_duration_seconds",
    Kind.HISTOGRAM,
    (),
    "Time of events in which this server computed the assignment of a group. Without classic groups, whose members "
    "assign the partitions.",
)
SHARE_SESSIONS = Family("headrace_share_sessions", Kind.GAUGE, (), "Sessions of share consumers with this broker.")
SHARE_HELD = Family(
    "headrace_share_held_records",
    Kind.GAUGE,
    ("group", "topic"),
    "Records that members of a share group have acquired and not acknowledged, in partitions of this broker. Without "
    "native topics.",
)
SHARE_ACQUIRED = Family(
    "headrace_share_acquired_records_total",
    Kind.COUNTER,
    (),
    "Records that members of share groups acquired. A record counts with each delivery.",
)
SHARE_REDELIVERED = Family(
    "headrace_share_redelivered_records_total", Kind.COUNTER, (), "Acquired records that had been delivered before."
)
SHARE_EXPIRED = Family(
    "headrace_share_lock_timeouts_total",
    Kind.COUNTER,
    (),
    "Records whose lock ended without an acknowledgement. Without native topics.",
)
SHARE_GIVEN_UP = Family(
    "headrace_share_delivery_limits_total",
    Kind.COUNTER,
    (),
    "Records that reached the delivery limit. No member gets them again.",
)
GROUP_LAG = Family(
    "headrace_group_lag",
    Kind.GAUGE,
    ("group", "topic", "partition"),
    "Records that a group has not read, in each partition of topics with its committed offsets or members; from "
    "the log start offset without a committed offset. For a share group, records that are not done. Native topics have "
    "series of share groups only, because their offsets do not count records.",
)

GROUP_LAG_SECONDS = Family(
    "headrace_group_lag_seconds",
    Kind.GAUGE,
    ("group", "topic", "partition"),
    "Age of the record that a group reads next: the seconds that it is behind. 0 if it has read everything. If the "
    "record is in the archive, the age of the first record in Redis. For a share group, the age of the first record "
    "that is not done.",
)

TRANSACTIONS = Family(
    "headrace_transactions",
    Kind.GAUGE,
    (),
    "Open transactions that this broker coordinates: ongoing ones, and decided ones that have not ended everywhere.",
)
TRANSACTIONS_OVERDUE = Family(
    "headrace_transactions_overdue",
    Kind.GAUGE,
    (),
    "Those of them that are older than the timeout of their producer. After a restart, they have the whole time again.",
)
TRANSACTION_OLDEST = Family(
    "headrace_transaction_oldest_seconds", Kind.GAUGE, (), "Age of the oldest of them; 0: none is open."
)
TRANSACTION_VERIFICATION = Family(
    "headrace_transaction_verification_seconds",
    Kind.HISTOGRAM,
    (),
    "Time that the first batch of a transaction in a partition waits for the coordinator.",
)
LATE_PARTITIONS = Family(
    "headrace_late_transaction_partitions",
    Kind.GAUGE,
    (),
    "Partitions with a transaction that is open 5 minutes longer than `transaction.max.timeout.ms`. Kafka has it as "
    "PartitionsWithLateTransactionsCount.",
)
ABORTED = Family(
    "headrace_aborted_transactions",
    Kind.GAUGE,
    (),
    "Aborted transactions of this broker's partitions that are in memory, 32 bytes each. Older ones are in Redis.",
)
STABLE_LAG = Family(
    "headrace_last_stable_offset_lag",
    Kind.GAUGE,
    ("topic",),
    "Records that readers of committed records cannot see yet, in the partition that has most of them. Topics that "
    "never had a transaction have no series.",
)

THROTTLED = Family(
    "headrace_throttled_total",
    Kind.COUNTER,
    ("quota",),
    "Throttled requests and rejected connections, by the exceeded quota.",
)
THROTTLED_TIME = Family(
    "headrace_throttled_seconds_total",
    Kind.COUNTER,
    ("quota",),
    "Total throttle time of clients.",
)

WRITABLE = Family(
    "headrace_writable",
    Kind.GAUGE,
    (),
    "0 while this server accepts no records. `/readyz?for=write` and the banner of the console state the reason.",
)
STORE_UP = Family(
    "headrace_store_up", Kind.GAUGE, (), "1 if Redis responded to this scrape, else 0, and its gauges are missing."
)
STORE_MEMORY = Family("headrace_store_memory_bytes", Kind.GAUGE, (), "Memory that Redis uses (used_memory).")
STORE_MEMORY_MAX = Family("headrace_store_memory_max_bytes", Kind.GAUGE, (), "Redis' maxmemory; 0: no limit.")
STORE_REPLICAS = Family("headrace_store_replicas", Kind.GAUGE, (), "Replicas connected to Redis.")
STORE_FILE = Family("headrace_store_append_file_bytes", Kind.GAUGE, (), "Size of Redis' append-only file; 0: disabled.")
STORE_FILE_OK = Family(
    "headrace_store_append_file_ok", Kind.GAUGE, (), "0 if the last write of Redis to that file failed."
)
STORE_APPENDS = Family("headrace_store_appends_total", Kind.COUNTER, (), "Record batches that Redis has stored.")
STORE_APPEND_BYTES = Family("headrace_store_append_bytes_total", Kind.COUNTER, (), "Bytes of these batches.")
STORE_READ_BYTES = Family(
    "headrace_store_read_bytes_total",
    Kind.COUNTER,
    ("source",),
    "Bytes of batches of this broker's logs that were not in its memory when read, by source: `redis`, "
    "or `file`, the append-only file of the embedded Valkey. Native topics are not included.",
)
STORE_REFUSED = Family(
    "headrace_store_append_failures_total",
    Kind.COUNTER,
    (),
    "Batches that Redis rejected, or whose outcome was unknown when the connection was lost.",
)
STORE_APPEND_DURATION = Family(
    "headrace_store_append_duration_seconds", Kind.HISTOGRAM, (), "Time from sending batches to Redis to its response."
)
STORE_RECONNECTS = Family(
    "headrace_store_reconnects_total", Kind.COUNTER, (), "Connections to Redis opened again after a loss."
)
STORE_OPENINGS = Family(
    "headrace_store_openings_total", Kind.COUNTER, (), "Logs recovered, at the start or after an unknown outcome."
)
BROKERS = Family(
    "headrace_brokers",
    Kind.GAUGE,
    (),
    "Live brokers known to this one, including itself; 0 while the others have declared it dead.",
)
UNREADABLE = Family(
    "headrace_unreadable_values",
    Kind.GAUGE,
    ("kind",),
    "Stored values of a kind that are skipped because they cannot be read. See the log.",
)
UNOPENED = Family(
    "headrace_unopened_partitions",
    Kind.GAUGE,
    (),
    "Partitions that accept no records now: offline ones, and those whose leader this broker is becoming.",
)
JOURNAL = Family("headrace_store_journal_bytes", Kind.GAUGE, (), "Size of the journal; 0: no journal.")
JOURNAL_WAITING = Family(
    "headrace_store_journal_waiting_bytes",
    Kind.GAUGE,
    (),
    "Bytes that are acknowledged from the journal and not yet confirmed by Redis.",
)

CLEANER_PASSES = Family(
    "headrace_log_cleaner_passes_total",
    Kind.COUNTER,
    (),
    "Passes of the log cleaner that have changed a compacted log.",
)
CLEANER_FAILURES = Family(
    "headrace_log_cleaner_failures_total",
    Kind.COUNTER,
    (),
    "Passes of the log cleaner that failed. The log of the server has the reasons, and the next pass continues.",
)
DEAD_LETTERS = Family(
    "headrace_dead_letters_total",
    Kind.COUNTER,
    (),
    "Records of share groups that were copied to dead letter topics.",
)
DEAD_LETTER_FAILURES = Family(
    "headrace_dead_letter_failures_total",
    Kind.COUNTER,
    (),
    "Failed attempts to copy dead letters. The server logs the reason, and repeats the copy.",
)
DEAD_LETTERS_WAITING = Family(
    "headrace_dead_letters_waiting",
    Kind.GAUGE,
    (),
    "Records of share groups that wait for their copies in dead letter topics.",
)

CLEANER_READ = Family(
    "headrace_log_cleaner_read_bytes_total", Kind.COUNTER, (), "Bytes of record batches that were cleaned."
)
CLEANER_KEPT = Family(
    "headrace_log_cleaner_kept_bytes_total", Kind.COUNTER, (), "Bytes of record batches that were left after cleaning."
)
CLEANER_DIRTY = Family(
    "headrace_log_cleaner_dirty_bytes",
    Kind.GAUGE,
    (),
    "Bytes in compacted logs of this server that were appended since they were cleaned.",
)
CLEANER_DIRTY_RATIO = Family(
    "headrace_log_cleaner_max_dirty_ratio",
    Kind.GAUGE,
    (),
    "Largest share of these bytes in a log (Kafka: `max-dirty-percent`).",
)

DISK_FREE = Family("headrace_disk_free_bytes", Kind.GAUGE, (), "Free space of the file system of the data directory.")
DISK_SIZE = Family("headrace_disk_size_bytes", Kind.GAUGE, (), "Size of the file system of the data directory.")
LOG_LINES_LOST = Family(
    "headrace_log_lines_lost_total", Kind.COUNTER, (), "Lines of the server's log that could not be written."
)
OPEN_FDS = Family("process_open_fds", Kind.GAUGE, (), "File descriptors in use.")
MAX_FDS = Family("process_max_fds", Kind.GAUGE, (), "Maximum number of file descriptors.")
RESIDENT = Family("process_resident_memory_bytes", Kind.GAUGE, (), "Memory of the server without Redis.")
CPU = Family("process_cpu_seconds_total", Kind.COUNTER, (), "CPU time of the server without Redis.")
STARTED = Family("process_start_time_seconds", Kind.GAUGE, (), "Start time of the server in seconds since 1970.")

ARCHIVE_RECORDS = Family(
    "headrace_archive_records_total",
    Kind.COUNTER,
    ("topic",),
    "Records written to the table since the archive started.",
)
ARCHIVE_BYTES = Family("headrace_archive_bytes_total", Kind.COUNTER, ("topic",), "Bytes of Parquet written for them.")
ARCHIVE_FILES = Family("headrace_archive_files_total", Kind.COUNTER, ("topic",), "Files added to the table.")
ARCHIVE_BATCHES = Family("headrace_archive_batches_total", Kind.COUNTER, ("topic",), "Batches, including empty ones.")
ARCHIVE_GROUP_FAILURES = Family(
    "headrace_archive_group_failures_total",
    Kind.COUNTER,
    ("topic",),
    "Batches whose offsets could not be committed to the group; the next batch commits them.",
)
ARCHIVE_LAG = Family(
    "headrace_archive_lag",
    Kind.GAUGE,
    ("topic",),
    "Records in the log that are not yet in the table.",
)
ARCHIVE_FRESH = Family(
    "headrace_archive_fresh_timestamp_seconds",
    Kind.GAUGE,
    ("topic",),
    "Approximate time up to which the table is complete, in seconds since 1970.",
)
ARCHIVE_VERSION = Family("headrace_archive_table_version", Kind.GAUGE, ("topic",), "The version of the table.")

FAMILIES: tuple[Family, ...] = tuple(each for each in globals().values() if isinstance(each, Family))
"""All metrics, in the order of this file."""
