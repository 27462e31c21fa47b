"""What `docs/keyspace.md` says of native topics, and its golden file: records, entries, offsets, ids."""

import asyncio
import json
import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.records import streams
from headrace.records.build import build
from headrace.records.walk import records
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.layout.native import STATE_FIELDS, groups_of, id_of, offset_at
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append
from headrace.topics.native import NativeStream

PAGE = (Path(__file__).parents[3] / "docs" / "keyspace.md").read_text()
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "native-1.json").read_text())


def column(header: str) -> list[str]:
    table = PAGE.split(f"| {header} | ", 1)[1].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def data(text: str | None) -> bytes | None:
    """Bytes as the golden file has them: text, or base64 after `base64:`."""
    if text is None:
        return None
    return b64decode(text[7:]) if text.startswith("base64:") else text.encode()


def text(found: bytes | None) -> str | None:
    if found is None:
        return None
    try:
        return found.decode()
    except UnicodeDecodeError:
        return f"base64:{b64encode(found).decode()}"


def test_offsets_and_ids() -> None:
    for bits, offset, entry_id in GOLDEN["offsets"]:
        assert id_of(offset, bits) == entry_id
        assert offset_at(entry_id.encode(), bits) == offset


def test_records_are_written_as_they_were() -> None:
    for case in GOLDEN["records"]:
        record = case["record"]
        headers = tuple((name, data(value)) for name, value in record["headers"])
        batch = build([(data(record["key"]), data(record["value"]), record["timestamp"], headers)])
        arguments, _ = streams.xadd_arguments(batch)
        parts = re.findall(rb"\$\d+\r\n(.*?)\r\n(?=\$|$)", arguments, re.DOTALL)
        assert [text(part) for part in parts[1:]] == case["fields"]


def test_entries_are_read_as_they_were() -> None:
    for case in [*GOLDEN["records"], *GOLDEN["foreign"]]:
        entry = [b"5-7", [data(part) for part in case["fields"]]]
        [(base, _, batch)], unfit, gone = streams.build_batches([entry], 10, 1 << 20)
        [found] = records(batch, base)
        assert (unfit, gone, found.offset) == ([], [], 5 << 10 | 7)
        assert {
            "key": text(found.key),
            "value": text(found.value),
            "timestamp": found.timestamp,
            "headers": [[name, text(value)] for name, value in found.headers],
        } == case["record"]


def test_the_page_has_the_fields_of_a_record() -> None:
    assert set(column("field of a record")) == {"key", "value", "headers", "timestamp"}
    assert "`1234567890123-5` is offset 1264197519485957" in PAGE
    assert id_of(1264197519485957) == "1234567890123-5"


def test_the_page_has_every_key_and_every_field_of_the_state(any_redis: RedisServer) -> None:
    async def use() -> None:
        admin = redis.asyncio.from_url(any_redis.url)
        await admin.flushall()
        storage = await RedisStorage.open(any_redis.url, admin, 1)
        await storage.native.open(NativeStream("s", 10))
        await storage.native.enter(NativeStream("s", 10), "g", "m", 0)
        shards: Any = storage.scripts.shards
        made = Append(build([(None, b"v", 1, ())]), 1, 1)
        send, shards.send = shards.send, lambda _, callback: callback(StorageUnavailable("no answer"))
        storage.native.append(NativeStream("s", 10), made, lambda _: None)
        shards.send = send
        storage.native.append(NativeStream("s", 10), made, lambda _: None)
        await storage.ping()
        await storage.close()

    asyncio.run(use())
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        assert {*column("field of a native state")} == {*link.hkeys(state_of("s"))} == {"e", "w", *STATE_FIELDS}
        assert re.fullmatch("[0-9a-f]{8} 1", link.hget(state_of("s"), "w"))
        assert json.loads(link.hget(groups_of("s"), "g")) == ["m"]
    named = {name.replace("<stream>", "s") for name in column("key of a native topic")}
    assert named == {state_of("s"), producers_of("s"), groups_of("s")}
