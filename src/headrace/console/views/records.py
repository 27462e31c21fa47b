"""`/topics/NAME/records`: records by offset, time and key, and one record in all its forms."""

import json
from base64 import b64encode
from typing import Any

from headrace.broker.topics.live import LiveTopic
from headrace.console import record_reader, text
from headrace.console.record_reader import ISOLATION, Found
from headrace.console.registry import NotFound, View, ViewRequest, page, topic_rule
from headrace.console.server_data import broker_text, led_here
from headrace.console.views.topics import live_topic
from headrace.records.walk import Record
from headrace.security.access.required_acls import Operation
from headrace.text import times
from headrace.text.escaping import json_text, shown

ROWS = 50
_BASE64 = 240
"""Maximum bytes of a key or value in the API JSON view."""
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@page("Records", "/topics/{name:path}/records", needs=(topic_rule(Operation.READ),))
async def records(ask: ViewRequest) -> View:
    """Return the page with records of a partition."""
    live = live_topic(ask)
    name, query = live.topic.name, ask.query
    index, offset, wrong = await _start(ask, live)
    partition = live.partitions[index]
    key = query.get("key", "")
    part = key.encode("utf-8", "surrogateescape")
    read = await record_reader.some(ask.figures, ask.broker, partition, offset, ROWS, part)
    chosen = None
    if query.get("show", "").isdecimal():
        at = int(query["show"][:19])
        if partition.log_start <= at < partition.visible_end(ISOLATION):
            one = await record_reader.some(ask.figures, ask.broker, partition, at, 1)
            chosen = _whole(ask, live, index, one.found[0]) if one.found else None
    common = {"partition": index, "key": key}
    end = partition.visible_end(ISOLATION)
    rows = [row(live, index, each, ask.broker.cluster, common | {"from": offset}) for each in read.found]
    data = {
        "name": name,
        "shown": text.name(name),
        "topic": text.topic(name, ask.broker.cluster),
        "path": text.records(name),
        "cluster": ask.broker.cluster,
        "partitions": len(live.partitions),
        "partition": index,
        "begin": query.get("from", ""),
        "at": query.get("at", ""),
        "key": key,
        "rows": rows,
        "record": chosen,
        "wrong": wrong,
        "passed_over": read.passed_over,
        "log_end": end,
        "next": _on(ask, live, common, read.following) if read.following < end else "",
        "before": _on(ask, live, common, max(partition.log_start, offset - ROWS))
        if offset > partition.log_start
        else "",
        "oldest": _on(ask, live, common, partition.log_start),
        "newest": _on(ask, live, common, max(partition.log_start, end - ROWS)),
    }
    cells = {"start": text.count(partition.log_start), "end": text.count(end)}
    return View(template="records.html", title=f"Records of {text.name(name)}", data=data, cells=cells, shape=0)


def _on(ask: ViewRequest, live: LiveTopic, common: dict[str, Any], offset: int) -> str:
    return text.records(live.topic.name, ask.broker.cluster, **{**common, "from": offset})


async def _start(ask: ViewRequest, live: LiveTopic) -> tuple[int, int, str]:
    query = ask.query
    told = query.get("partition", "").strip() or str(_first(live))
    if not (told.isascii() and told.isdecimal()) or int(told[:9]) >= len(live.partitions):
        raise NotFound(f"Topic {text.name(live.topic.name)} has no partition {text.name(told)}.")
    index = int(told)
    partition = live.partitions[index]
    if partition.leader is not None:
        leader = broker_text(ask.broker, partition.leader)
        raise NotFound(
            f"Partition {index} of {text.name(live.topic.name)} is led by {leader}. Open the console of that broker."
        )
    end = partition.visible_end(ISOLATION)
    newest = max(partition.log_start, end - ROWS)
    start, at = query.get("from", "").strip(), query.get("at", "").strip()
    if at:
        try:
            found = await ask.broker.find_offset(
                partition, times.instant(at, ask.broker.clock.now_ms()), isolation=ISOLATION
            )
        except ValueError as error:
            return index, newest, str(error)
        return index, found.offset if found.offset >= 0 else partition.visible_end(ISOLATION), ""
    match start:
        case "" | "newest" | "latest":
            return index, newest, ""
        case "oldest" | "earliest":
            return index, partition.log_start, ""
        case _ if start.isascii() and start.isdecimal():
            offset = int(start[:19])
            wrong = "" if offset <= end else f"The log end offset is {end:,}."
            return index, min(max(offset, partition.log_start), end), wrong
    return index, newest, f"An offset is a whole number, oldest or newest; found {text.name(start)}."


def _first(live: LiveTopic) -> int:
    here = led_here(live)
    return next(
        (each.index for each in here if each.visible_end(ISOLATION) > each.log_start), here[0].index if here else 0
    )


def row(live: LiveTopic, index: int, each: Found, cluster: str, query: dict[str, Any]) -> dict[str, Any]:
    """Return a record for a list."""
    record = each.record
    return {
        "offset": record.offset,
        "shown": text.count(record.offset),
        "time": moment(record.timestamp),
        "key": text.preview(record.key),
        "null_key": record.key is None,
        "value": text.preview(record.value),
        "null": record.value is None,
        "size": text.size(len(record.value or b"")),
        "headers": each.headers,
        "href": text.records(live.topic.name, cluster, **query, show=record.offset) + "#record",
    }


def moment(timestamp: int) -> str:
    """Return a timestamp in the local zone; a dash for none."""
    return "-" if timestamp < 0 else times.local(timestamp)


def _whole(ask: ViewRequest, live: LiveTopic, index: int, each: Found) -> dict[str, Any]:
    record = each.record
    return {
        "offset": text.count(record.offset),
        "time": moment(record.timestamp),
        "timestamp": record.timestamp,
        "key": text.views(record.key),
        "value": text.views(record.value),
        "size": text.size(len(record.value or b"")),
        "headers": [
            (text.name(name), text.views(value[: 1 << 10] if value else value)) for name, value in record.headers
        ],
        "more_headers": each.headers - len(record.headers),
        "batch": each.batch,
        "codec": _CODECS.get(each.batch.codec, str(each.batch.codec)),
        "kafka": _kafka(live, index, record),
        "oci": _oci(live, index, record),
        "redis": _redis(ask, live, index, each),
    }


def _short(data: bytes | None) -> Any:
    return None if data is None else shown(data, _BASE64)


def _kafka(live: LiveTopic, index: int, record: Record) -> str:
    told = {
        "topic": live.topic.name,
        "partition": index,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _short(record.key),
        "value": _short(record.value),
        "headers": [[name, _short(value)] for name, value in record.headers],
    }
    return json_text(told, indent=2)


def _oci(live: LiveTopic, index: int, record: Record) -> str:
    told = {
        "stream": live.topic.name,
        "partition": str(index),
        "key": None if record.key is None else _base64(record.key),
        "value": _base64(record.value or b""),
        "offset": record.offset,
        "timestamp": moment(record.timestamp),
    }
    return json_text(told, indent=2)


def _base64(data: bytes) -> str:
    whole = len(data) <= _BASE64
    return b64encode(data[:_BASE64]).decode() + ("" if whole else f"… ({len(data):,} bytes before base64)")


def _redis(ask: ViewRequest, live: LiveTopic, index: int, each: Found) -> str:
    key, batch = shown(live.partitions[index].stream), each.batch
    word = json.dumps(key) if not key.replace(":", "").replace("-", "").replace(".", "").isalnum() else key
    if live.entry_per_record:
        entry = ask.figures.entries.of_record(each.record.offset, live.config.sequence_bits)
        return f"XRANGE {word} {entry} {entry}\n\nentry  {entry}, one for each record: key, value, headers, timestamp"
    entry = ask.figures.entries.of_batch(batch.leader_epoch, batch.next_offset)
    place = each.record.offset - batch.base_offset + 1
    return (
        f"XRANGE {word} {entry} {entry}\n\n"
        f"entry  {entry}\n"
        f"b      a record batch of {batch.size:,} bytes, compression {_CODECS.get(batch.codec, '?')}: "
        f"offsets {batch.base_offset:,} to {batch.next_offset - 1:,}\n"
        f"       this is record {place:,} of {batch.count:,} in it"
    )
