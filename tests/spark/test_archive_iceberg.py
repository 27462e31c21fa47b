"""The same files in Delta and in Iceberg, read by pyiceberg and DuckDB. Without Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.harness.storage import BareStorage

from headrace.cli import main
from headrace.records.build import build
from headrace.spark.archive import maintain
from headrace.spark.archive.iceberg import CatalogUnavailable, IcebergName, IcebergTwin, paths_of, twin_of
from headrace.spark.archive.place import Place
from headrace.spark.archive.table import ArchiveTable
from headrace.spark.archive.typed.decoding import Decoding
from headrace.spark.errors import OptionError, TableError
from headrace.topics.model import Topic

from .conftest import DAY, records
from .test_archive_table import Archiver, archived, pairs


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    created = storage.create_topic("iceberg-" + request.node.name, partitions=2)
    for partition in (0, 1):
        storage.append_batch(created, partition, bytes(build(records(60))))
    return created


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    """A catalog in SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


def opened(table: Path, options: dict[str, str]) -> tuple[ArchiveTable, IcebergTwin]:
    found = ArchiveTable(Place.of(str(table)))
    return found, IcebergTwin(IcebergName("lake:archive.t", options), found)


def in_iceberg(options: dict[str, str], name: str = "archive.t") -> list[tuple[int, int]]:
    """What another program sees, that knows nothing of Delta."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    found = load_catalog("lake", **options).load_table(name).scan().to_arrow()
    return sorted(zip(found.column("partition").to_pylist(), found.column("offset").to_pylist(), strict=True))


def test_the_iceberg_table_follows_through_commits_compaction_and_vacuum(
    storage: BareStorage, topic: Topic, tmp_path: Path, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t"
    archiver = Archiver(storage, topic, path)
    archiver.archive((0, 0, 20), (1, 0, 20))
    table, twin = opened(path, options)
    assert twin.sync(table.snapshot()) == 2
    assert twin.sync(table.snapshot()) == 0
    archiver.archive((0, 20, 40))
    archiver.archive((0, 40, 60), (1, 20, 60))
    # Killed before it followed: the next one brings all of it.
    table, twin = opened(path, options)
    assert twin.sync(table.snapshot()) == 3
    everything = pairs(0, range(60)) + pairs(1, range(60))
    assert in_iceberg(options) == archived(path) == everything

    # The command finds the catalog's name in the table itself, and both lists change.
    asked = [text for name, value in options.items() for text in ("--iceberg-option", f"{name}={value}")]
    assert main.run(["tables", "compact", str(path), *asked]) == 0
    assert "5 files became 2" in capsys.readouterr().out
    table, twin = opened(path, options)
    assert twin.sync(table.snapshot()) == 0
    assert in_iceberg(options) == archived(path) == everything

    # Iceberg's older snapshots list the five still: they stay, until those are given up.
    kept = paths_of(table.place, twin.listed(since=datetime.fromtimestamp(0, UTC)))
    assert len(kept) == 7
    assert maintain.vacuum(table, older_than_h=0, spare=kept) == []
    kept = paths_of(table.place, twin.listed(since=datetime.now(UTC)))
    assert len(maintain.vacuum(table, older_than_h=0, spare=kept)) == 5
    assert in_iceberg(options) == archived(path) == everything


def test_two_that_follow_at_once_list_each_file_once(
    storage: BareStorage, topic: Topic, tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    Archiver(storage, topic, path).archive((0, 0, 60))
    table, twin = opened(path, options)
    other_table, other = opened(path, options)
    commit = IcebergTwin._commit

    def other_first(self: IcebergTwin, *arguments: object) -> None:
        if self is twin:
            monkeypatch.setattr(IcebergTwin, "_commit", commit)
            other.sync(other_table.snapshot())
        commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(IcebergTwin, "_commit", other_first)
    twin.sync(table.snapshot())
    assert in_iceberg(options) == pairs(0, range(60))


def test_columns_grow_in_both(storage: BareStorage, tmp_path: Path, options: dict[str, str]) -> None:
    topic = storage.create_topic("iceberg-typed")
    path = tmp_path / "t"
    archiver = Archiver(storage, topic, path, decoding=Decoding.of("json"))
    storage.append_batch(topic, 0, bytes(build([(None, b'{"a": 1}', DAY, ())])))
    archiver.archive((0, 0, 1))
    table, twin = opened(path, options)
    twin.sync(table.snapshot())
    storage.append_batch(topic, 0, bytes(build([(None, b'{"a": 2, "b": "x"}', DAY, ())])))
    archiver.archive((0, 1, 2))
    twin.sync(table.snapshot())
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    found = load_catalog("lake", **options).load_table("archive.t").scan().to_arrow().sort_by("offset")
    assert (found.column("a").to_pylist(), found.column("b").to_pylist()) == ([1, 2], [None, "x"])


def test_names_and_catalogs_that_cannot_be(tmp_path: Path, options: dict[str, str]) -> None:
    table = ArchiveTable(Place.of(str(tmp_path / "t")))
    with pytest.raises(OptionError, match=r"--iceberg must be CATALOG:NAMESPACE\.TABLE"):
        IcebergTwin(IcebergName("archive", options), table)
    with pytest.raises(CatalogUnavailable, match=r"^Iceberg table lake:a.b: "):
        IcebergTwin(IcebergName("lake:a.b", {"type": "rest", "uri": "http://127.0.0.1:1"}), table)
    assert twin_of(table, options) is None
    IcebergTwin(IcebergName("lake:archive.{topic}", options).of("a.b"), table)
    with pytest.raises(TableError, match=r"lake:archive\.a_b is there and lists other files"):
        IcebergTwin(IcebergName("lake:archive.a_b", options), ArchiveTable(Place.of(str(tmp_path / "u"))))
