"""Reports of archive and pipeline runs, stored as documents for the console."""

from collections import deque
from enum import Enum

import msgspec

ARCHIVE_RUNS = "archive-runs"
"""Kind of the documents. The id is that of the archive, from the topic's id and the table."""
MOST_COMMITS = 60
_SILENT_MS = 30_000
"""An archive without a report for this long is silent. It reports every five seconds."""
_RUN_MS = 6 * 3600 * 1000
"""A pipeline's run without a report for this long is considered gone. One Spark flow may take long."""


class State(Enum):
    """State of a run."""

    RUNNING = "running"
    DONE = "done"
    """It was to end with everything in the table."""
    STOPPED = "stopped"
    FAILED = "failed"


class Commit(msgspec.Struct, frozen=True):
    """One commit to the table."""

    time_ms: int
    rows: int
    seconds: float
    """Duration of the batch."""
    version: int


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of one archive as of `told_ms`."""

    topic: str
    table: str
    group: str = ""
    host: str = ""
    state: State = State.RUNNING
    problem: str = ""
    """Reason of a failure."""
    started_ms: int
    told_ms: int
    trigger_s: float = 0.0
    rows: int = 0
    """Archived by this run and those before it (`behind`)."""
    bytes: int = 0
    files: int = 0
    version: int = 0
    lag: int | None = None
    fresh_ms: int | None = None
    """The table is complete up to this time."""
    group_failures: int = 0
    unreadable: int = 0
    commits: tuple[Commit, ...] = ()
    """The last ones, oldest first."""
    topic_id: str = ""
    """The topic that `ends` belong to. Empty in reports of earlier versions."""
    ends: dict[int, int] = {}
    """Partition -> offset before which the table has all records."""

    def runs(self, now_ms: int) -> bool:
        """Return whether the archive still reports."""
        return self.state is State.RUNNING and now_ms - self.told_ms <= _SILENT_MS

    def goes_on(self, before: "ArchiveReport") -> bool:
        """Whether an earlier run's report is of the same table."""
        if self.commits:
            return self.commits[0].version > before.version
        return not 0 < self.version < before.version

    def behind(self, before: "ArchiveReport") -> "ArchiveReport":
        """Return the report with the counts of earlier runs added: a run with `--once` may find no records."""
        return msgspec.structs.replace(
            self,
            rows=before.rows + self.rows,
            bytes=before.bytes + self.bytes,
            files=before.files + self.files,
            version=self.version or before.version,
            commits=(*before.commits, *self.commits)[-MOST_COMMITS:],
        )


_MOST_LOOKS = 10_000


class Freshness:
    """Time up to which a table is complete."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)
        """Times and log ends that the table has not reached."""
        self.seconds: float | None = None
        """Since 1970, if known."""

    def see(self, now: float, archived: int, end: int) -> None:
        """Record that at `now`, since 1970, the table had everything below `archived`, and the log ended at `end`."""
        self._looks.append((now, end))
        while self._looks and self._looks[0][1] <= archived:
            self.seconds = self._looks.popleft()[0]


PIPELINE_RUNS = "pipeline-runs"
"""Kind of the documents. The id is that of the project, from its folder and host. It has the last run."""


class TopicEnds(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets at which a flow's run ended in one topic."""

    topic: str
    id: str
    """The topic's id, which no other server has."""
    ends: dict[int, int]
    """Partition -> next offset to read."""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One flow of a run."""

    name: str
    state: str
    """In Spark's words, such as `queued`, `running` or `completed`."""
    read: int | None = None
    """Rows of all sources. None: still running, or not a stream."""
    written: int | None = None
    batches: int | None = None
    seconds: float | None = None
    behind: int | None = None
    """Records that it had not read of its topics when it ended. None: it reads none."""
    topics: tuple[TopicEnds, ...] = ()
    """Topics that it reads, as far as their ids are known."""


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Last run of one project, as of `told_ms`."""

    name: str
    folder: str
    host: str = ""
    state: State = State.RUNNING
    problem: str = ""
    """Reason of a failure."""
    started_ms: int
    told_ms: int
    flows: tuple[FlowReport, ...] = ()

    def runs(self, now_ms: int) -> bool:
        """Return whether the run still reports."""
        return self.state is State.RUNNING and now_ms - self.told_ms <= _RUN_MS
