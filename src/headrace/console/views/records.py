"""`/topics/NAME/records`: records by offset, time and key, and one record in all its forms."""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic
from headrace.console import record_reader, text
from headrace.console.downloads import FORMATS, Download, Row, asked_format, headers_of
from headrace.console.pagination import positions_of, positions_text
from headrace.console.record_filter import Filter
from headrace.console.record_reader import ISOLATION, Found
from headrace.console.record_search import MOST_S, ROWS, WINDOW, Match, Result, search
from headrace.console.record_worker import LATE, Decoded, TooManySearches
from headrace.console.registry import SHOWN, NotFound, View, ViewRequest, page, topic_rule
from headrace.console.server_data import broker_text, led_here
from headrace.console.views.topics import live_topic
from headrace.records.walk import Record
from headrace.security.access.principal import ANONYMOUS
from headrace.security.access.required_acls import SERVER, Operation, Resource, ResourceType
from headrace.text import times
from headrace.text.escaping import json_text, shown
from headrace.topics.errors import NotLeader

_BASE64 = 240
"""Maximum bytes of a key or value in the API JSON view."""
_CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


COLUMNS = (
    "topic", "partition", "offset", "timestamp", "key", "value", "headers",
    "key_schema", "key_decoded", "value_schema", "value_decoded",
)  # fmt: skip
"""Columns of a download."""


@page("Records", "/topics/{name:path}/records", needs=(topic_rule(Operation.READ),))
async def records(ask: ViewRequest) -> View:
    """Return the page with records of a partition, or of all of them."""
    live = live_topic(ask)
    query = ask.query
    wanted = Filter.of(query.get("key", ""), query.get("q", ""), query.get("field", ""))
    index = asked_partition(ask, live)
    if index is None or wanted:
        listed = await _several(ask, live, index, wanted)
    else:
        listed = await _single(ask, live, index)
    if told := asked_format(ask.query):
        rows = [_downloaded(live, each) for each in listed.matches]
        return View(template="", title="", download=Download(told, f"{live.topic.name}-records", COLUMNS, rows))
    return _page(ask, live, index, wanted, listed)


class Listed(msgspec.Struct):
    """The records of a page, and where it continues."""

    matches: list[Match]
    wrong: str
    passed_over: int
    positions: str
    """Where following begins."""
    searched: dict[str, object] | None = None
    """What a search covered."""
    record: dict[str, Any] | None = None
    """The record that is shown in full."""
    begin: int | None = None
    """The first offset of one partition."""
    next: str = ""
    before: str = ""
    hidden: int = 0
    """Offsets in this range that are markers or belong to aborted transactions."""
    open: str = ""
    """Which of several partitions have an open transaction."""
    oldest: str = ""
    newest: str = ""


def _page(ask: ViewRequest, live: LiveTopic, index: int | None, wanted: Filter, listed: Listed) -> View:
    name, query = live.topic.name, ask.query
    common = {} if listed.begin is None else {"from": listed.begin}
    kept = {each: query.get(each) for each in ("partition", "from", "at", "key", "q", "field", "positions", "first")}
    data = {
        "name": name,
        "shown": text.name(name),
        "topic": text.topic(name, ask.broker.cluster),
        "path": text.records(name),
        "cluster": ask.broker.cluster,
        "partitions": len(live.partitions),
        "partition": "" if index is None else index,
        "elsewhere": _elsewhere(ask, live) if index is None else "",
        "begin": query.get("from", ""),
        "at": query.get("at", ""),
        "key": wanted.key,
        "text": wanted.text,
        "field": wanted.field,
        "filtered": bool(wanted),
        "rows": [row(live, each, ask.broker.cluster, common) for each in listed.matches],
        "record": listed.record,
        "wrong": listed.wrong,
        "passed_over": listed.passed_over,
        "hidden": text.many(listed.hidden, "offset") if listed.hidden else "",
        "open": listed.open,
        "positions": listed.positions,
        "searched": listed.searched,
        "next": listed.next,
        "before": listed.before,
        "oldest": listed.oldest,
        "newest": listed.newest,
        "downloads": [(each, text.records(name, ask.broker.cluster, **kept, download=each)) for each in FORMATS],
    }
    cells = {} if index is None else ends(live.partitions[index])
    return View(template="records.html", title=f"Records of {text.name(name)}", data=data, cells=cells, shape=0)


def ends(partition: Partition) -> dict[str, str]:
    """Return the cells with a partition's offsets."""
    end = partition.visible_end(ISOLATION)
    return {"start": text.count(partition.log_start), "end": text.count(end), "unstable": _unstable(partition, end)}


def _unstable(partition: Partition, end: int) -> str:
    """Return what hides the last records of a partition; empty: nothing."""
    try:
        partition.check_stable()
    except NotLeader:
        return "; no record is shown until the index of its transactions has been rebuilt"
    left = partition.log_end - end
    return f"; an open transaction hides {text.many(left, 'offset')} from {end:,} on" if left > 0 else ""


def _open(partitions: Sequence[Partition]) -> str:
    """Return which partitions have hidden records at their end; empty: none has."""
    found = [each.index for each in partitions if each.log_end > each.visible_end(ISOLATION)]
    if not found:
        return ""
    listed = ", ".join(map(str, found[:_MOST_RANGES])) + (" and others" if len(found) > _MOST_RANGES else "")
    return f"Open transactions hide the last records of {text.many(len(found), 'partition')}: {listed}."


def visible_schemas(ask: ViewRequest) -> Callable[[str], bool]:
    """Return the function that returns whether the viewer may see schemas of a topic, as in the schema registry."""
    return lambda topic: ask.may(SHOWN[ResourceType.TOPIC], Resource(ResourceType.TOPIC, topic, SERVER))


def visitor(ask: ViewRequest) -> str:
    """Return the name by which a viewer is counted."""
    return ask.asker.host if ask.principal == ANONYMOUS else str(ask.principal)


def chosen_partitions(live: LiveTopic, index: int | None, first: int = 0, most: int = WINDOW) -> list[Partition]:
    """Return the partitions of a page: one, or those from `first` on that this server leads."""
    if index is not None:
        return [live.partitions[index]]
    return [each for each in led_here(live) if each.index >= first][:most]


def asked_partition(ask: ViewRequest, live: LiveTopic) -> int | None:
    """Return the requested partition; None: all. Raises NotFound."""
    told = ask.query.get("partition", "").strip()
    if told in {"", "all"}:
        return None if len(live.partitions) > 1 else 0
    if not (told.isascii() and told.isdecimal()) or int(told[:9]) >= len(live.partitions):
        raise NotFound(f"Topic {text.name(live.topic.name)} has no partition {text.name(told)}.")
    index = int(told)
    leader = live.partitions[index].leader
    if leader is not None:
        where = broker_text(ask.broker, leader)
        raise NotFound(
            f"Partition {index} of {text.name(live.topic.name)} is led by {where}. Open the console of that broker."
        )
    return index


def _elsewhere(ask: ViewRequest, live: LiveTopic) -> str:
    leaders = {each.leader for each in live.partitions if each.leader is not None}
    if not leaders:
        return ""
    count = sum(each.leader is not None for each in live.partitions)
    where = ", ".join(broker_text(ask.broker, each) for each in sorted(leaders))
    return f"{text.many(count, 'partition')} led by other brokers: open the console of {where}."


async def _single(ask: ViewRequest, live: LiveTopic, index: int) -> Listed:
    partition, query = live.partitions[index], ask.query
    if partition.leader is not None:
        raise NotFound(f"Partition {index} is led by {broker_text(ask.broker, partition.leader)}.")
    offset, wrong = await _start(ask, partition, ROWS)
    read = await record_reader.some(ask.figures, ask.broker, partition, offset, ROWS)
    end = partition.visible_end(ISOLATION)
    common = {"partition": index}
    listed = Listed(await _decoded(ask, index, read.found), wrong, read.passed_over, positions_text({index: end}))
    listed.begin, listed.hidden = offset, read.hidden
    listed.next = _on(ask, live, common, read.following) if read.following < end else ""
    if offset > partition.log_start:
        listed.before = _on(ask, live, common, max(partition.log_start, offset - ROWS))
    listed.oldest = _on(ask, live, common, partition.log_start)
    listed.newest = _on(ask, live, common, max(partition.log_start, end - ROWS))
    if query.get("show", "").isdecimal():
        at = int(query["show"][:19])
        if partition.log_start <= at < end:
            one = await record_reader.some(ask.figures, ask.broker, partition, at, 1)
            found = [each for each in one.found if partition.has_gaps or each.record.offset == at]
            shown_ = await _decoded(ask, index, found)
            listed.record = _whole(ask, live, shown_[0]) if shown_ else None
    return listed


async def _decoded(ask: ViewRequest, index: int, found: Sequence[Found]) -> list[Match]:
    until = perf_counter() + MOST_S
    chosen, examined = await ask.figures.work.run([each.record for each in found], visible_schemas(ask), until)
    late = [(place, (LATE, LATE)) for place in range(examined, len(found))]
    return [Match(index, found[place], parts) for place, parts in (*chosen, *late)]


async def _several(ask: ViewRequest, live: LiveTopic, index: int | None, wanted: Filter) -> Listed:
    """Read or search all partitions, or search one."""
    query = ask.query
    given = positions_of(query.get("positions", ""))
    first = min(given, default=0)
    if query.get("first", "").isdecimal():
        first = int(query["first"][:9])
    partitions = chosen_partitions(live, index, first)
    share = ROWS if wanted else max(1, ROWS // max(1, len(partitions)))
    starts, wrong = [], ""
    for each in partitions:
        start, reason = await _start(ask, each, share, oldest=bool(wanted))
        starts.append(given.get(each.index, start))
        wrong = wrong or reason
    common = {
        "partition": query.get("partition"), "from": query.get("from"), "at": _instant(ask),
        "key": wanted.key, "q": wanted.text, "field": wanted.field,
    }  # fmt: skip
    try:
        async with ask.figures.searches.turn(visitor(ask)):
            result = await search(ask.figures, ask.broker, partitions, starts, wanted, visible_schemas(ask))
    except TooManySearches as error:
        return Listed([], str(error), 0, "")

    def on(**more: object) -> str:
        return text.records(live.topic.name, ask.broker.cluster, **{**common, **more})

    followed = {each.index: each.visible_end(ISOLATION) for each in partitions}
    listed = Listed(result.matches, wrong, result.passed_over, positions_text(followed))
    listed.searched = _searched(result) if wanted else None
    listed.hidden, listed.open = result.hidden, _open(partitions) if index is None else ""
    more = index is None and any(each.index > partitions[-1].index for each in led_here(live)) if partitions else False
    if not result.complete:
        listed.next = on(positions=positions_text((each.partition, each.position) for each in result.ranges))
    elif more:
        listed.next = on(first=partitions[-1].index + 1)
    listed.oldest, listed.newest = on(**{"from": "oldest", "at": ""}), on(**{"from": "newest", "at": ""})
    return listed


def _instant(ask: ViewRequest) -> str:
    """Return the time in the query as an absolute one, so that a search continues from the same time."""
    at = ask.query.get("at", "").strip()
    try:
        return f"@{times.instant(at, ask.broker.clock.now_ms())}" if at else ""
    except ValueError:
        return ""


_MOST_RANGES = 10


def _searched(result: Result) -> dict[str, object]:
    read = [each for each in result.ranges if each.position > each.start]
    pairs = {(each.start, each.position - 1) for each in read}
    count = text.many(len(read), "partition")
    if len(pairs) == 1:
        low, high = pairs.pop()
        what = f"Searched offsets {low:,} to {high:,} of {count}"
    else:
        what = f"Searched {count}"
    left = sum(each.end - each.position for each in result.ranges)
    ranges = [f"{each.partition}: {each.start:,} to {each.position - 1:,}" for each in read[:_MOST_RANGES]]
    more = len(read) - _MOST_RANGES
    return {
        "what": f"{what}, {text.many(result.records, 'record')} in {result.seconds:.1f} s",
        "matches": f"{len(result.matches):,} {'match' if len(result.matches) == 1 else 'matches'}",
        "ranges": ranges + ([f"and {more:,} more"] if more > 0 else []) if len(read) > 1 or not pairs else [],
        "left": text.many(left, "offset") if left else "",
    }


def _on(ask: ViewRequest, live: LiveTopic, common: dict[str, Any], offset: int) -> str:
    return text.records(live.topic.name, ask.broker.cluster, **{**common, "from": offset})


async def _start(ask: ViewRequest, partition: Partition, rows: int, *, oldest: bool = False) -> tuple[int, str]:
    """Return where a page begins in a partition, and what is wrong with the request."""
    query = ask.query
    end = partition.visible_end(ISOLATION)
    newest = max(partition.log_start, end - rows)
    usual = partition.log_start if oldest else newest
    start, at = query.get("from", "").strip(), query.get("at", "").strip()
    if at:
        try:
            found = await ask.broker.find_offset(
                partition, times.instant(at, ask.broker.clock.now_ms()), isolation=ISOLATION
            )
        except ValueError as error:
            return usual, str(error)
        return found.offset if found.offset >= 0 else partition.visible_end(ISOLATION), ""
    named = {"": usual, "newest": newest, "latest": newest, "oldest": partition.log_start}
    if start in {*named, "earliest"}:
        return named.get(start, partition.log_start), ""
    if start.isascii() and start.isdecimal():
        offset = int(start[:19])
        wrong = "" if offset <= end else f"The log end offset of partition {partition.index} is {end:,}."
        return min(max(offset, partition.log_start), end), wrong
    return usual, f"An offset is a whole number, oldest or newest; found {text.name(start)}."


def row(live: LiveTopic, match: Match, cluster: str, query: dict[str, Any]) -> dict[str, Any]:
    """Return a record for a list."""
    record, (key, value) = match.found.record, match.parts
    at = {"partition": match.partition, "from": record.offset, **query}
    return {
        "partition": match.partition,
        "offset": record.offset,
        "shown": text.count(record.offset),
        "time": moment(record.timestamp),
        "key": _previewed(record.key, key),
        "null_key": record.key is None,
        "value": _previewed(record.value, value),
        "null": record.value is None,
        "faults": [each.fault for each in (key, value) if each is not None and each.fault],
        "size": text.size(len(record.value or b"")),
        "headers": match.found.headers,
        "href": text.records(live.topic.name, cluster, **at, show=record.offset) + "#record",
    }


def _previewed(data: bytes | None, decoded: Decoded | None) -> str:
    return text.preview(data) if decoded is None or decoded.text is None else text.name(decoded.text)


def _downloaded(live: LiveTopic, match: Match) -> Row:
    record = match.found.record
    made: dict[str, Any] = {
        "topic": live.topic.name,
        "partition": match.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": headers_of(record.headers),
    }
    for name, decoded in zip(("key", "value"), match.parts, strict=True):
        if decoded is not None:
            made |= {f"{name}_schema": decoded.schema, f"{name}_decoded": decoded.text}
            if decoded.fault:
                made[f"{name}_fault"] = decoded.fault
    return made


def moment(timestamp: int) -> str:
    """Return a timestamp in the local zone; a dash for none."""
    return "-" if timestamp < 0 else times.local(timestamp)


def _whole(ask: ViewRequest, live: LiveTopic, match: Match) -> dict[str, Any]:
    each, index = match.found, match.partition
    record = each.record
    return {
        "offset": text.count(record.offset),
        "time": moment(record.timestamp),
        "timestamp": record.timestamp,
        "key": text.views(record.key),
        "value": text.views(record.value),
        "decoded": [_shown(each) for each in match.parts],
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


def _shown(decoded: Decoded | None) -> dict[str, str] | None:
    """Return a decoded key or value for the page."""
    if decoded is None:
        return None
    views = None if decoded.text is None else text.views(decoded.text.encode("utf-8", "backslashreplace"))
    return {
        "schema": decoded.schema,
        "text": "" if views is None else views.json or views.text,
        "fault": decoded.fault,
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
    partition, batch = live.partitions[index], each.batch
    stream = partition.stream
    if live.entry_per_record:
        word = _word(stream)
        entry = ask.figures.entries.of_record(each.record.offset, live.config.sequence_bits)
        return f"XRANGE {word} {entry} {entry}\n\nentry  {entry}, one for each record: key, value, headers, timestamp"
    entry = ask.figures.entries.of_batch(batch.leader_epoch, batch.next_offset)
    place = f"record {each.record.offset - batch.base_offset + 1:,} of {batch.count:,} in it"
    segment = None if partition.log is None else partition.log.segment_at(each.record.offset)
    if segment is not None:
        stream, entry = ask.figures.entries.in_segment(stream, segment.number, batch.next_offset)
        place = "one of the records that the cleaner kept in it"
    word = _word(stream)
    return (
        f"XRANGE {word} {entry} {entry}\n\n"
        f"entry  {entry}\n"
        f"b      a record batch of {batch.size:,} bytes, compression {_CODECS.get(batch.codec, '?')}: "
        f"offsets {batch.base_offset:,} to {batch.next_offset - 1:,}\n"
        f"       this is {place}"
    )


def _word(stream: str) -> str:
    """Return a key as a word of redis-cli."""
    key = shown(stream)
    return key if key.replace(":", "").replace("-", "").replace(".", "").isalnum() else json.dumps(key)
