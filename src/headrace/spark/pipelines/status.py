"""A run tells of itself in the storage of each server that its project reads from or writes to, for their consoles.

Where a server does not tell where its storage is (it tells clients on its own machine only) nothing is told. Nobody
waits for it, and a run whose storage does not take it goes on.
"""

import contextlib
import hashlib
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from headrace.client.cluster import kept
from headrace.client.errors import SparkError
from headrace.lakehouse.status.document import make_room
from headrace.metrics.runs import PIPELINE_RUNS, FlowReport, PipelineReport, State
from headrace.spark.pipelines import check
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, blocking

_FLOW: Final = re.compile(r"Flow (?:[\w`]+\.)*`?(?P<name>[^`\s]+?)`? (?:is|has) (?P<state>[A-Z]+)\b")
_TIMEOUT_S: Final = 10.0
_MOST_PROBLEM: Final = 500
_MOST_FLOWS: Final = 200


class Teller:
    """Tells of one run."""

    def __init__(self, folder: Path, urls: Sequence[str]) -> None:
        """Tell that it begins, to the storages at these URLs."""
        self._folder = folder
        self._started_ms = _now_ms()
        self._key = Keyspace().documents(PIPELINE_RUNS)
        self._storages = []
        for url in urls:
            with contextlib.suppress(*ERRORS):
                self._storages.append(blocking(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S))
        host = socket.gethostname()
        self._id = hashlib.sha256(f"{host}\n{folder}".encode()).hexdigest()[:24]
        self._host = host
        self._flows: dict[str, str] = {}
        self._tell(State.RUNNING)

    def said(self, line: str) -> None:
        """A line of Spark's: perhaps a flow is further."""
        found = _FLOW.search(line)
        if found is not None and len(self._flows) < _MOST_FLOWS:
            self._flows[found["name"]] = found["state"].lower()
            self._tell(State.RUNNING)

    def done(self, flows: Sequence[FlowReport]) -> None:
        """The run has ended well; flows that are told nothing of are as Spark said last."""
        told = {each.name for each in flows}
        rest = [FlowReport(name=name, state=said) for name, said in self._flows.items() if name not in told]
        self._tell(State.DONE, [*flows, *rest])
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Whatever ends it otherwise is told, too."""
        failed = isinstance(error, Exception)
        self._tell(State.FAILED if failed else State.STOPPED, problem=str(error)[:_MOST_PROBLEM] if failed else "")
        self._close()

    def _close(self) -> None:
        for storage in self._storages:
            storage.close()
        self._storages = []

    def state_of(self, flow: str) -> str:
        """What Spark said last of a flow."""
        return self._flows.get(flow, State.DONE.value)

    def _tell(self, state: State, flows: Sequence[FlowReport] | None = None, problem: str = "") -> None:
        if flows is None:
            flows = [FlowReport(name=name, state=said) for name, said in self._flows.items()]
        document = msgspec.json.encode(
            PipelineReport(
                name=self._folder.name,
                folder=str(self._folder),
                host=self._host,
                state=state,
                problem=problem,
                started_ms=self._started_ms,
                told_ms=_now_ms(),
                flows=tuple(flows),
            )
        )
        for storage in list(self._storages):
            try:
                make_room(storage, self._key, self._id)
                storage.hset(self._key, self._id, document)
            except ERRORS:
                self._storages.remove(storage)  # so that the run waits for it once only
                storage.close()


def storages(folder: Path) -> list[str]:
    """URLs of the storages of every server of the project that says where its storage is."""
    urls: dict[str, None] = {}
    for cluster in check.clusters(folder):
        with contextlib.suppress(SparkError):
            url = kept(cluster).broker_setting("headrace.storage.url")
            if url is not None:
                urls[url] = None
    return list(urls)


def _now_ms() -> int:
    return round(time.time() * 1000)
