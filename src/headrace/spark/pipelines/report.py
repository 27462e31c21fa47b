"""What a run did, from Spark's event log: rows per flow, how long, and where it stands in its topics."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.client.offsets import TopicPartition
from headrace.metrics.runs import FlowReport

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
    """Rows, of all its sources."""
    written: int = 0
    """Rows in files of tables; sinks written in Python are not counted by Spark."""
    batches: int = 0
    seconds: float = 0.0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """The next offsets to read, of sources that are topics."""
    observed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What `DataFrame.observe` saw, by its name: whole numbers are added up over the batches, others are the last."""

    def behind(self, ends: Mapping[TopicPartition, int]) -> int | None:
        """Records between where the flow stands and these ends of the logs; None when no end is known."""
        topics = {partition.topic for partition in self.positions}
        known = {partition: end for partition, end in ends.items() if partition.topic in topics}
        if not known:
            return None
        return sum(max(0, end - self.positions.get(partition, 0)) for partition, end in known.items())

    def told(self, ends: Mapping[TopicPartition, int], state: str) -> FlowReport:
        """The same for who watches, with what Spark said last of the flow."""
        return FlowReport(
            name=self.name,
            state=state,
            read=self.read,
            written=self.written or None,
            batches=self.batches,
            seconds=round(self.seconds, 1),
            behind=self.behind(ends),
        )


def failure(said: Sequence[str]) -> str:
    """What the last exception in a run's output says, in one line without its class: ours, if there is one of ours."""
    raised = [match for line in said if (match := _RAISED.match(line))]
    ours = [match for match in raised if match[0].startswith("headrace.")]
    if raised:
        return str((ours or raised)[-1]["message"])
    return said[-1] if said else "it ended without a word"


def of_run(log: Path | None) -> list[Flow]:
    """The streaming flows of the run whose event log this is; none where there is no log."""
    if log is None or not log.is_file():
        return []
    with log.open(encoding="utf-8", errors="replace") as lines:
        return flows(lines)


def flows(lines: Iterable[str]) -> list[Flow]:
    """The streaming flows of an event log, in the order in which they first did something."""
    found: dict[str, Flow] = {}
    names: dict[str, str] = {}
    queries: dict[int, str] = {}
    written: dict[str, int] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a run that was killed
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
    # The sum beside them is missing in some batches.
    flow.read += sum(source.get("numInputRows", 0) for source in sources)
    flow.batches += 1
    flow.seconds += progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
    for source in sources:
        flow.positions |= _positions(source.get("endOffset"))
    for name, row in (progress.get("observedMetrics") or {}).items():
        seen = flow.observed.setdefault(name, {})
        for key, value in _row(row).items():
            counted = isinstance(value, int) and isinstance(seen.get(key, 0), int)
            seen[key] = seen.get(key, 0) + value if counted else value


def _row(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row as Spark writes it into the event log: values, and the names in a schema beside them."""
    if not {"values", "schema"} <= stored.keys():
        return stored
    schema = stored["schema"]
    fields = schema["fields"] if isinstance(schema, dict) else schema
    return {field["name"]: value for field, value in zip(fields, stored["values"], strict=True)}


def _positions(stored: Any) -> dict[TopicPartition, int]:
    """A source's end; empty when it is not of a topic's form."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError:
            return {}
    if not isinstance(stored, dict) or not all(isinstance(one, dict) for one in stored.values()):
        return {}
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in stored.items()
        for partition, offset in partitions.items()
        if partition.isdigit() and isinstance(offset, int)
    }
