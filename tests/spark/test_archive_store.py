"""The archive's tables in an object store that fails half way, loses answers and refuses. Without Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable
from tests.harness.storage import BareStorage
from tests.harness.store import ObjectStore, object_store
from tests.spark.bare_archiver import Archiver, pairs

from headrace.client.errors import StoreUnavailable, TableError
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable
from headrace.records.build import build
from headrace.topics.model import Topic

from .conftest import DAY, records


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


@pytest.fixture
def place(store: ObjectStore, request: pytest.FixtureRequest) -> Place:
    return Place.of(f"s3://lake/{request.node.name}/t", {**store.options, "max_retries": "1"})


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    """Two partitions of 100 records each."""
    created = storage.create_topic(f"store-{request.node.name}".replace("[", "-").rstrip("]"), partitions=2)
    for partition in (0, 1):
        storage.append_batch(created, partition, bytes(build(records(100))))
    return created


def archived(place: Place) -> list[tuple[int, int]]:
    rows = DeltaTable(place.url, storage_options=place.options).to_pyarrow_table(columns=["partition", "offset"])
    return sorted((row["partition"], row["offset"]) for row in rows.to_pylist())


def test_a_table_in_an_object_store_is_written_joined_and_cleaned(
    storage: BareStorage, topic: Topic, place: Place
) -> None:
    archiver = Archiver(storage, topic, place)
    for start in range(0, 100, 25):
        assert archiver.archive((0, start, start + 25), (1, start, start + 25)) == 50
    assert archived(place) == pairs(0, range(100)) + pairs(1, range(100))
    table = ArchiveTable(place)
    assert maintenance.compact(table).after == 2
    assert len(maintenance.vacuum(table, older_than_h=0)) == 8
    assert archived(place) == pairs(0, range(100)) + pairs(1, range(100))
    assert maintenance.expire(table, before=datetime.fromtimestamp((DAY + 50) / 1000, UTC)) == (0, 0)


def test_an_answer_that_is_lost_is_a_commit_all_the_same(
    storage: BareStorage, topic: Topic, place: Place, store: ObjectStore
) -> None:
    archiver = Archiver(storage, topic, place)
    store.fail("PUT", f"{place.url.removeprefix('s3://')}/_delta_log/00000000000000000001.json", "lose")
    assert archiver.archive((0, 0, 60), (1, 0, 60)) == 120
    assert archiver.archive((0, 0, 100), (1, 0, 100)) == 80
    assert archived(place) == pairs(0, range(100)) + pairs(1, range(100))


@pytest.mark.parametrize("part", ["parquet", "_delta_log"])
def test_a_store_that_fails_half_way_loses_and_doubles_nothing(
    storage: BareStorage, topic: Topic, place: Place, store: ObjectStore, part: str
) -> None:
    archiver = Archiver(storage, topic, place)
    archiver.archive((0, 0, 30))
    store.fail("PUT", part, "error", times=2)  # the retry of delta-rs fails as well
    with pytest.raises(StoreUnavailable) as told:
        archiver.archive((0, 30, 100), (1, 0, 100))
    assert "\n" not in str(told.value)
    assert archived(place) == pairs(0, range(30))
    assert archiver.archive((0, 0, 100), (1, 0, 100)) == 170
    assert archived(place) == pairs(0, range(100)) + pairs(1, range(100))


def test_one_line_reports_that_writing_is_not_allowed(store: ObjectStore, place: Place) -> None:
    ArchiveTable(place)
    store.fail("PUT", "_headrace", "deny")
    with pytest.raises(
        TableError, match=r"cannot be written: not allowed \(.*\); check the keys and what they may do$"
    ):
        ArchiveTable(place)
    store.fail("GET", "", "deny")
    with pytest.raises(TableError, match=r"not allowed \(.*\); check the keys"):
        ArchiveTable(place)
    with pytest.raises(TableError, match=r"s3://nowhere/t .*there is no such bucket"):
        ArchiveTable(Place.of("s3://nowhere/t", store.options))


def test_a_missing_store_is_reported_soon() -> None:
    options = {
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_region": "r",
        "aws_allow_http": "true",
        "max_retries": "1",
    }
    key = {"aws_access_key_id": "k", "aws_secret_access_key": "never to be seen"}
    with pytest.raises(StoreUnavailable) as told:
        ArchiveTable(Place.of("s3://lake/t", {**options, **key}))
    assert "\n" not in str(told.value)
    assert "never to be seen" not in f"{told.value} {Place.of('s3://lake/t', key)!r}"
