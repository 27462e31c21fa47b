"""What a run of a declared pipeline tells of itself, for whoever watches: a document in the storage."""

import msgspec

from headrace.metrics.archive import State

KIND = "pipeline-runs"
"""The documents' kind; a document's id is the project's, of its folder and host: its last run is told."""


class FlowTold(msgspec.Struct, frozen=True, kw_only=True):
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


class PipelineTold(msgspec.Struct, frozen=True, kw_only=True):
    """One project's last run, as of `told_ms`."""

    name: str
    folder: str
    host: str = ""
    state: State = State.RUNNING
    problem: str = ""
    """Why it failed."""
    started_ms: int
    told_ms: int
    flows: tuple[FlowTold, ...] = ()
