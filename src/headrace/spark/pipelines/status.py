"""Collect the results of a project's run, and report them in the storage of each server it uses.

Rows, durations and offsets come from Spark's event log. A server returns its storage URL only to clients on its
machine. A run never waits for the report, and continues if a storage rejects it.
"""

import contextlib
import hashlib
import json
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from headrace.client.cluster import kept
from headrace.client.errors import SparkError
from headrace.client.offsets import ID, TopicPartition
from headrace.lakehouse.status.document import make_room
from headrace.metrics.runs import PIPELINE_RUNS, FlowReport, PipelineReport, State, TopicEnds
from headrace.spark.pipelines import check
from headrace.storage.layout.keys import Keyspace
from headrace.storage.redis.clients import ERRORS, blocking

_FLOW: Final = re.compile(r"Flow (?:[\w`]+\.)*`?(?P<name>[^`\s]+?)`? (?:is|has) (?P<state>[A-Z]+)\b")
_TIMEOUT_S: Final = 10.0
_MOST_PROBLEM: Final = 500
_MOST_FLOWS: Final = 200


class Teller:
    """Reports one run."""

    def __init__(self, folder: Path, urls: Sequence[str]) -> None:
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
        """Update the flows from a line of output."""
        found = _FLOW.search(line)
        if found is not None and len(self._flows) < _MOST_FLOWS:
            self._flows[found["name"]] = found["state"].lower()
            self._tell(State.RUNNING)

    def done(self, flows: Sequence[FlowReport]) -> None:
        """Report success. Flows without figures keep their last state."""
        told = {each.name for each in flows}
        rest = [FlowReport(name=name, state=said) for name, said in self._flows.items() if name not in told]
        self._tell(State.DONE, [*flows, *rest])
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        failed = isinstance(error, Exception)
        self._tell(State.FAILED if failed else State.STOPPED, problem=str(error)[:_MOST_PROBLEM] if failed else "")
        self._close()

    def _close(self) -> None:
        for storage in self._storages:
            storage.close()
        self._storages = []

    def state_of(self, flow: str) -> str:
        """Return the last state that Spark printed."""
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
                self._storages.remove(storage)  # the run waits for it only once
                storage.close()


def storages(folder: Path) -> list[str]:
    """Return the storage URLs that the servers reveal."""
    urls: dict[str, None] = {}
    for cluster in check.clusters(folder):
        with contextlib.suppress(SparkError):
            url = kept(cluster).broker_setting("headrace.storage.url")
            if url is not None:
                urls[url] = None
    return list(urls)


def _now_ms() -> int:
    return round(time.time() * 1000)


_PROGRESS: Final = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
_RAISED: Final = re.compile(
    r"(?:headrace\.(?:client|lakehouse|spark)[\w.]*\.\w+|[\w.]+(?:Exception|Error)): (?P<message>.+)"
)
_QUERY: Final = "sql.streaming.queryId"


@dataclass
class Flow:
    """One streaming flow's run."""

    name: str
    read: int = 0
    """Rows of all sources."""
    written: int = 0
    """Rows in files of tables. Spark does not count those of Python sinks."""
    batches: int = 0
    seconds: float = 0.0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Next offsets to read, for topics."""
    ids: dict[str, str] = field(default_factory=dict)
    """Topic IDs by name."""
    observed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values of `DataFrame.observe` by name: integers are summed over the batches, others are the last."""

    def behind(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Return the records between the flow's offsets and the log ends, or None."""
        topics = {partition.topic for partition in self.positions}
        known = {partition: end for partition, end in ends.items() if partition.topic in topics}
        if not known:
            return None
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in known.items())

    def told(self, ends: Mapping[TopicPartition, int], state: str) -> FlowReport:
        """Return the flow's report."""
        return FlowReport(
            name=self.name,
            state=state,
            read=self.read,
            written=self.written or None,
            batches=self.batches,
            seconds=round(self.seconds, 1),
            behind=self.behind(ends),
            topics=tuple(
                TopicEnds(
                    topic=topic,
                    id=topic_id,
                    ends={one.partition: offset for one, offset in self.positions.items() if one.topic == topic},
                )
                for topic, topic_id in self.ids.items()
            ),
        )


def failure(said: Sequence[str]) -> str:
    """Return the last exception as one line, without its class. Headrace's own take precedence."""
    raised = [match for line in said if (match := _RAISED.match(line))]
    ours = [match for match in raised if match[0].startswith("headrace.")]
    if raised:
        return str((ours or raised)[-1]["message"])
    return said[-1] if said else "it ended without a word"


def of_run(log: Path | None) -> list[Flow]:
    """Return an event log's streaming flows, or none without a log."""
    if log is None or not log.is_file():
        return []
    with log.open(encoding="utf-8", errors="replace") as lines:
        return flows(lines)


def flows(lines: Iterable[str]) -> list[Flow]:
    """Return the streaming flows in order of first activity."""
    found: dict[str, Flow] = {}
    names: dict[str, str] = {}
    queries: dict[int, str] = {}
    written: dict[str, int] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a killed run
            continue
        match event.get("Event"):
            case "SparkListenerJobStart" if query := (event.get("Properties") or {}).get(_QUERY):
                queries |= dict.fromkeys(event["Stage IDs"], query)
            case "SparkListenerTaskEnd" if query := queries.get(event["Stage ID"]):
                written[query] = written.get(query, 0) + _written(event)
            case name if name == _PROGRESS:
                progress = event["progress"]
                named = names[progress["id"]] = (progress.get("name") or progress["id"]).rpartition(".")[2]
                _add(found.setdefault(named, Flow(named)), progress)
    for query, name in names.items():
        found[name].written += written.get(query, 0)
    return list(found.values())


def _written(event: Mapping[str, Any]) -> int:
    if event["Task End Reason"].get("Reason") != "Success":
        return 0
    metrics = event.get("Task Metrics") or {}
    return int(metrics.get("Output Metrics", {}).get("Records Written", 0))


def _add(flow: Flow, progress: Mapping[str, Any]) -> None:
    sources = progress.get("sources") or []
    # Some batches lack their own total.
    flow.read += sum(source.get("numInputRows", 0) for source in sources)
    flow.batches += 1
    flow.seconds += progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
    for source in sources:
        positions, ids = _positions(source.get("endOffset"))
        flow.positions |= positions
        flow.ids |= ids
    for name, row in (progress.get("observedMetrics") or {}).items():
        seen = flow.observed.setdefault(name, {})
        for key, value in _row(row).items():
            counted = isinstance(value, int) and isinstance(seen.get(key, 0), int)
            seen[key] = seen.get(key, 0) + value if counted else value


def _row(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    if not {"values", "schema"} <= stored.keys():
        return stored
    schema = stored["schema"]
    fields = schema["fields"] if isinstance(schema, dict) else schema
    return {field["name"]: value for field, value in zip(fields, stored["values"], strict=True)}


def _positions(stored: Any) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """Return the offsets, and topic IDs by name. Other sources than topics have none."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError:
            return {}, {}
    if not isinstance(stored, dict) or not all(isinstance(one, dict) for one in stored.values()):
        return {}, {}
    positions = {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in stored.items()
        for partition, offset in partitions.items()
        if partition.isdigit() and isinstance(offset, int)
    }
    ids = {topic: partitions[ID] for topic, partitions in stored.items() if isinstance(partitions.get(ID), str)}
    return positions, ids
