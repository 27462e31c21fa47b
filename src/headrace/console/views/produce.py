"""`/topics/NAME/produce`: a form that produces one record."""

import base64
import binascii
import secrets
from typing import Any, NamedTuple

from headrace.broker.topics.live import LiveTopic
from headrace.console import text
from headrace.console.kafka_client import Rejected, check, check_writes, send, whole_number
from headrace.console.registry import Redirect, View, ViewRequest, page, topic_rule
from headrace.console.server_data import led_here
from headrace.console.views.topics import live_topic
from headrace.protocol.messages import ProduceRequest
from headrace.records.build import build
from headrace.records.partitioner import partition_of
from headrace.security.access.required_acls import Operation

_TIMEOUT_MS = 10_000
_ALL_REPLICAS = -1
_MOST_HEADERS = 100
_NEEDS = (topic_rule(Operation.WRITE),)


class _Record(NamedTuple):
    """What was typed."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@page("Produce", "/topics/{name:path}/produce", needs=_NEEDS, live=False)
async def produce(ask: ViewRequest) -> View:
    """Return the form."""
    check_writes(ask)
    return _view(ask, ask.query)


@page("ProduceRecord", "/topics/{name:path}/produce", method="POST", needs=_NEEDS, live=False)
async def produce_record(ask: ViewRequest) -> View:
    """Produce the record of the form, or return the form with the reason."""
    live = live_topic(ask)
    try:
        record = _record(ask, live)
        index = _partition(live, record)
        offset = await _produced(ask, live, index, record)
    except Rejected as rejected:
        return _view(ask, ask.form, str(rejected))
    more = {name: ask.form.get(name, "") for name in ("partition", "encoding")}
    raise Redirect(text.produce(live.topic.name, ask.broker.cluster, **more, at=index, stored=offset))


def _view(ask: ViewRequest, given: Any, wrong: str = "") -> View:
    live = live_topic(ask)
    name, cluster = live.topic.name, ask.broker.cluster
    stored, index = ask.query.get("stored", ""), ask.query.get("at", "")
    done = {}
    if not ask.form and stored.isdecimal() and index.isdecimal():
        done = {
            "offset": stored[:19],
            "partition": index[:9],
            "href": text.records(name, cluster, partition=index[:9], show=stored[:19]) + "#record",
        }
    data = {
        "shown": text.name(name),
        "topic": text.topic(name, cluster),
        "self": text.produce(name, cluster),
        "partitions": len(live.partitions),
        "given": {each: given.get(each, "") for each in ("partition", "key", "value", "headers", "encoding")},
        "tombstone": bool(given.get("tombstone")),
        "done": done,
        "wrong": wrong,
    }
    title = f"Produce to {text.name(name)}"
    return View(template="produce.html", title=title, data=data, forms=True, status=400 if wrong else 200)


def _record(ask: ViewRequest, live: LiveTopic) -> _Record:
    form = ask.form
    key, encoding = form.get("key", ""), form.get("encoding", "")
    given = form.get("partition", "").strip()
    partition = whole_number(given, "Partition") if given else None
    value = None if form.get("tombstone") else _bytes(form.get("value", ""), encoding, "Value")
    if value is None and form.get("value"):
        raise Rejected("A tombstone has no value. Clear the value, or do not select the tombstone.")
    return _Record(partition, _bytes(key, encoding, "Key") if key else None, value, _headers(form.get("headers", "")))


def _bytes(given: str, encoding: str, what: str) -> bytes:
    if encoding != "base64":
        # Browsers send lines with CR LF.
        return given.replace("\r\n", "\n").encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode("".join(given.split()), validate=True)
    except (binascii.Error, ValueError):
        raise Rejected(f"{what}: expected base64, found {given[:100]!r}.") from None


def _headers(given: str) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for line in given.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not (name.strip() and colon):
            raise Rejected(f"Headers: expected lines such as source: console, found {line[:100]!r}.")
        headers.append((name.strip(), value.strip().encode("utf-8", "surrogateescape")))
    if len(headers) > _MOST_HEADERS:
        raise Rejected(f"Headers: expected at most {_MOST_HEADERS}, found {len(headers)}.")
    return headers


def _partition(live: LiveTopic, record: _Record) -> int:
    """Return the partition as Kafka's default partitioner; without a key, one that this broker leads."""
    if record.partition is not None:
        return record.partition
    if record.key is not None:
        return partition_of(record.key, len(live.partitions))
    here = led_here(live)
    return secrets.choice(here).index if here else 0


async def _produced(ask: ViewRequest, live: LiveTopic, index: int, record: _Record) -> int:
    """Return the offset of the stored record. Raises Rejected."""
    batch = build([(record.key, record.value, ask.broker.clock.now_ms(), tuple(record.headers))])
    data = ProduceRequest.PartitionProduceData(index=index, records=batch)
    topic = ProduceRequest.TopicProduceData(topic_id=live.topic.id, partition_data=[data])
    response = await send(ask, ProduceRequest(acks=_ALL_REPLICAS, timeout_ms=_TIMEOUT_MS, topic_data=[topic]))
    answers = response.responses[0].partition_responses
    check(ask, answers)
    offset: int = answers[0].base_offset
    return offset
