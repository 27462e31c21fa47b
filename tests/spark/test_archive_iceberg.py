"""The same files in Delta and in Iceberg, read by pyiceberg, in a directory and in an object store. Without Spark."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.harness.seaweed import Seaweed, seaweed
from tests.harness.storage import BareStorage
from tests.harness.store import ObjectStore, object_store
from tests.spark.bare_archiver import Archiver, pairs

from headrace.cli import main
from headrace.client.errors import ModuleMissing, OptionError, TableError
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.iceberg import CatalogUnavailable, IcebergName, IcebergTwin, paths_of, twin_of
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable
from headrace.records.build import build
from headrace.topics.model import Topic

from .conftest import DAY, records


@dataclass(frozen=True)
class Lake:
    """Where a table can lie, and a catalog for it."""

    place: Place
    catalog: dict[str, str]
    """pyiceberg's options, all that another program has to know."""
    table: str
    given: dict[str, str]
    """What the archive is given of them."""

    def opened(self, place: Place | None = None) -> tuple[ArchiveTable, IcebergTwin]:
        found = ArchiveTable(place or self.place)
        return found, IcebergTwin(IcebergName(f"lake:archive.{self.table}", self.given), found)

    def in_iceberg(self) -> Any:
        """What another program reads, that knows nothing of Delta."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        return load_catalog("lake", **self.catalog).load_table(f"archive.{self.table}").scan().to_arrow()

    def in_delta(self) -> Any:
        return self.place.delta().to_pyarrow_table()


def offsets(table: Any) -> list[tuple[int, int]]:
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as started:
        yield started


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "_", request.node.name).strip("_")


@pytest.fixture
def sql(tmp_path: Path) -> dict[str, str]:
    """A catalog in SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture(params=["sql and a directory", "sql and moto", "rest and seaweedfs"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, sql: dict[str, str], name: str) -> Lake:
    if request.param == "sql and a directory":
        return Lake(Place.of(str(tmp_path / "t")), sql, name, sql)
    if request.param == "sql and moto":
        return in_moto(request.getfixturevalue("store"), sql, name)
    weed: Seaweed = request.getfixturevalue("weed")
    return in_s3(name, weed.options, weed.catalog)


def in_moto(store: ObjectStore, sql: dict[str, str], name: str) -> Lake:
    """Table and Iceberg's metadata in moto's S3, a catalog in SQLite."""
    return in_s3(name, store.options, sql | {"warehouse": "s3://lake/warehouse"})


def in_s3(name: str, options: dict[str, str], catalog: dict[str, str]) -> Lake:
    """Other programs name the store once more, as pyiceberg has it; the archive takes it from the table's options."""
    keys = {
        "s3.endpoint": options["aws_endpoint_url"],
        "s3.access-key-id": options["aws_access_key_id"],
        "s3.secret-access-key": options["aws_secret_access_key"],
        "s3.region": options["aws_region"],
    }
    return Lake(Place.of(f"s3://lake/{name}", options), catalog | keys, name, catalog)


@pytest.fixture
def topic(storage: BareStorage, name: str) -> Topic:
    created = storage.create_topic(f"iceberg-{name}", partitions=2)
    for partition in (0, 1):
        storage.append_batch(created, partition, bytes(build(records(60))))
    return created


def test_the_iceberg_table_follows_through_commits_compaction_and_vacuum(
    storage: BareStorage, topic: Topic, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    archiver = Archiver(storage, topic, lake.place)
    archiver.archive((0, 0, 20), (1, 0, 20))
    table, twin = lake.opened()
    assert twin.sync(table.snapshot()) == 2
    assert twin.sync(table.snapshot()) == 0
    archiver.archive((0, 20, 40))
    archiver.archive((0, 40, 60), (1, 20, 60))
    # Killed before it followed: the next one brings all of it.
    table, twin = lake.opened()
    assert twin.sync(table.snapshot()) == 3
    everything = pairs(0, range(60)) + pairs(1, range(60))
    assert offsets(lake.in_iceberg()) == offsets(lake.in_delta()) == everything

    # The command finds the catalog's name in the table itself, and both lists change.
    asked = [text for name, value in lake.given.items() for text in ("--iceberg-option", f"{name}={value}")]
    asked += [text for name, value in lake.place.storage for text in ("--storage-option", f"{name}={value}")]
    assert main.run(["tables", "compact", lake.place.uri, *asked]) == 0
    assert "5 files became 2" in capsys.readouterr().out
    table, twin = lake.opened()
    assert twin.sync(table.snapshot()) == 0
    assert offsets(lake.in_iceberg()) == offsets(lake.in_delta()) == everything

    # Iceberg's older snapshots list the five still: they stay, until those are given up.
    kept = paths_of(table.place, twin.listed(since=datetime.fromtimestamp(0, UTC)))
    assert len(kept) == 7
    assert maintenance.vacuum(table, older_than_h=0, spare=kept) == []
    kept = paths_of(table.place, twin.listed(since=datetime.now(UTC)))
    assert len(maintenance.vacuum(table, older_than_h=0, spare=kept)) == 5
    assert offsets(lake.in_iceberg()) == offsets(lake.in_delta()) == everything

    with pytest.raises(TableError, match="is there and lists other files"):
        lake.opened(lake.place.sibling("2"))


def test_two_that_follow_at_once_list_each_file_once(
    storage: BareStorage, topic: Topic, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Archiver(storage, topic, lake.place).archive((0, 0, 60))
    table, twin = lake.opened()
    other_table, other = lake.opened()
    commit = IcebergTwin._commit  # noqa: SLF001  # the step that has to be interrupted

    def other_first(self: IcebergTwin, *arguments: object) -> None:
        if self is twin:
            monkeypatch.setattr(IcebergTwin, "_commit", commit)
            other.sync(other_table.snapshot())
        commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(IcebergTwin, "_commit", other_first)
    twin.sync(table.snapshot())
    assert offsets(lake.in_iceberg()) == pairs(0, range(60))


def test_a_store_that_fails_half_way_is_caught_up_with(
    storage: BareStorage, topic: Topic, store: ObjectStore, sql: dict[str, str], name: str
) -> None:
    lake = in_moto(store, sql, name)
    archiver = Archiver(storage, topic, lake.place)
    archiver.archive((0, 0, 20))
    table, twin = lake.opened()
    assert twin.sync(table.snapshot()) == 1
    archiver.archive((0, 20, 60), (1, 0, 60))
    table, twin = lake.opened()
    store.fail("PUT", f"{name}/_iceberg/", "error", times=50)  # more often than anybody tries again
    with pytest.raises(CatalogUnavailable, match=r"^Iceberg table [^\n]*$"):
        twin.sync(table.snapshot())
    store.heal()
    assert offsets(lake.in_iceberg()) == pairs(0, range(20))
    table, twin = lake.opened()
    assert twin.sync(table.snapshot()) == 2
    assert offsets(lake.in_iceberg()) == offsets(lake.in_delta()) == pairs(0, range(60)) + pairs(1, range(60))


def test_columns_grow_in_both(storage: BareStorage, name: str, lake: Lake) -> None:
    topic = storage.create_topic(f"iceberg-{name}")
    archiver = Archiver(storage, topic, lake.place, decoding=Decoding.of("json"))
    for offset, value in enumerate((b'{"a": 1}', b'{"a": 2, "b": "x"}')):
        storage.append_batch(topic, 0, bytes(build([(None, value, DAY, ())])))
        archiver.archive((0, offset, offset + 1))
        table, twin = lake.opened()
        twin.sync(table.snapshot())
    found = lake.in_iceberg().sort_by("offset")
    assert (found.column("a").to_pylist(), found.column("b").to_pylist()) == ([1, 2], [None, "x"])


def test_names_and_catalogs_that_cannot_be(tmp_path: Path, sql: dict[str, str]) -> None:
    table = ArchiveTable(Place.of(str(tmp_path / "t")))
    with pytest.raises(OptionError, match=r"--iceberg must be CATALOG:NAMESPACE\.TABLE"):
        IcebergTwin(IcebergName("archive", sql), table)
    with pytest.raises(CatalogUnavailable, match=r"^Iceberg table lake:a.b: "):
        IcebergTwin(IcebergName("lake:a.b", {"type": "rest", "uri": "http://127.0.0.1:1"}), table)
    with pytest.raises(ModuleMissing, match=r"^Iceberg table lake:a.b: Apache Hive support not installed"):
        IcebergTwin(IcebergName("lake:a.b", {"type": "hive", "uri": "thrift://127.0.0.1:1"}), table)
    assert twin_of(table, sql) is None
    IcebergTwin(IcebergName("lake:archive.{topic}", sql).of("a.b"), table)
    with pytest.raises(TableError, match=r"lake:archive\.a_b is there and lists other files"):
        IcebergTwin(IcebergName("lake:archive.a_b", sql), ArchiveTable(Place.of(str(tmp_path / "u"))))


def test_a_catalog_that_refuses_says_so_in_one_line_without_the_key(weed: Seaweed) -> None:
    table = ArchiveTable(Place.of("s3://lake/refused", weed.options))
    for wrong in ({"credential": "archivist:never-this"}, {"warehouse": "nowhere"}):
        with pytest.raises(CatalogUnavailable, match=r"^Iceberg table lake:a.b: [^\n]*$") as told:
            IcebergTwin(IcebergName("lake:a.b", weed.catalog | wrong), table)
        assert "never-this" not in str(told.value)
