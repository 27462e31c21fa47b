"""What runs of archives and of declared pipelines report of themselves: documents in the storage, for the console."""

from collections import deque
from enum import Enum

import msgspec

ARCHIVE_RUNS = "archive-runs"
"""The documents' kind; a document's id is the archive's, of its topic's id and its table."""
MOST_COMMITS = 60


class State(Enum):
    """How an archive is."""

    RUNNING = "running"
    DONE = "done"
    """It was to end when everything was in the table."""
    STOPPED = "stopped"
    FAILED = "failed"


class Commit(msgspec.Struct, frozen=True):
    """One commit of the table."""

    time_ms: int
    rows: int
    seconds: float
    """How long the batch took."""
    version: int


class ArchiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """One archive, as of `told_ms`."""

    topic: str
    table: str
    group: str = ""
    host: str = ""
    state: State = State.RUNNING
    problem: str = ""
    """Why it failed."""
    started_ms: int
    told_ms: int
    trigger_s: float = 0.0
    rows: int = 0
    """Archived, by this run and those before it (`behind`)."""
    bytes: int = 0
    files: int = 0
    version: int = 0
    lag: int | None = None
    fresh_ms: int | None = None
    """Up to when the table has everything."""
    group_failures: int = 0
    unreadable: int = 0
    commits: tuple[Commit, ...] = ()
    """The last ones, the newest last."""

    def goes_on(self, before: "ArchiveReport") -> bool:
        """Whether what an earlier run has told is of the same table, and not of one that lay there before."""
        if self.commits:
            return self.commits[0].version > before.version
        return not 0 < self.version < before.version

    def behind(self, before: "ArchiveReport") -> "ArchiveReport":
        """With what was counted by the runs before this one: a run of `--once` may find nothing new."""
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
    """Up to when a table has everything that was written, as looks at table and log can tell."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._looks: deque[tuple[float, int]] = deque(maxlen=_MOST_LOOKS)
        """When the log ended where, for ends that the table has not reached yet."""
        self.seconds: float | None = None
        """Since 1970; None: not known."""

    def see(self, now: float, archived: int, end: int) -> None:
        """At `now`, in seconds since 1970, the table had what is below `archived`, and the log ended at `end`."""
        self._looks.append((now, end))
        while self._looks and self._looks[0][1] <= archived:
            self.seconds = self._looks.popleft()[0]


PIPELINE_RUNS = "pipeline-runs"
"""The documents' kind; a document's id is the project's, of its folder and host: its last run is told."""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """One flow of a run."""

    name: str
    state: str
    """In Spark's words, such as `queued`, `running` or `completed`."""
    read: int | None = None
    """Rows, of all sources; None while it runs, and for flows that are not streams."""
    written: int | None = None
    batches: int | None = None
    seconds: float | None = None
    behind: int | None = None
    """Records between where it stands and the end of its topics; None: it reads none."""


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One project's last run, as of `told_ms`."""

    name: str
    folder: str
    host: str = ""
    state: State = State.RUNNING
    problem: str = ""
    """Why it failed."""
    started_ms: int
    told_ms: int
    flows: tuple[FlowReport, ...] = ()
