"""The guides to the archive, run as they stand: their Python and their commands."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from tests.harness.pages import ADDRESS, BLOCK, Shell, guides, steps
from tests.harness.store import ObjectStore, object_store

from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GUIDE = guides("archive", "iceberg", "tiered-storage", "table-maintenance")
FORGETTING = [command for command, _ in steps(GUIDE) if command.endswith(" --forget")]
ARCHIVING = [
    command for command, _ in steps(GUIDE) if command.startswith("headrace archive") and command not in FORGETTING
]
OTHERS = [command for command, _ in steps(GUIDE) if command not in (*ARCHIVING, *FORGETTING)]


def fill(broker: Server, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(topic, 2) for topic in topics]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for topic in topics:
        for number in range(10):
            producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(60) == 0


def test_from_python_and_what_looks_after_the_table(
    broker: Server, spark: "SparkSession", scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "flights")
    monkeypatch.chdir(scratch)
    reading, archiving = (block["text"] for block in BLOCK.finditer(GUIDE) if block["kind"] == "python")
    names = {"url": broker.storage, "spark": spark}
    exec(archiving.replace(ADDRESS, broker.kafka), names)  # what the guide says
    exec(reading, names)
    shell = Shell(scratch, broker, GUIDE)
    outputs = [shell.run(command) for command in OTHERS if command.startswith("headrace")]
    assert len(outputs) == 4
    assert DeltaTable("flights-table").count() == 10


@pytest.fixture
def places() -> Iterator[tuple[Shell, ObjectStore]]:
    """In a folder with a server that has three topics; the object store and the storage are in the environment."""
    # A short path, unlike pytest's own: the guide finds the Valkey's socket in the data directory.
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        Server(Path(folder) / ".headrace") as started,
        object_store() as store,
    ):
        fill(started, "flights", "orders", "shop.sales")
        made = Shell(Path(folder), started, GUIDE)
        variables = {name.upper(): text for name, text in store.options.items()}
        for name, text in (variables | {"HEADRACE_REDIS": started.storage}).items():
            made.run(f"{name}={text}")
        yield made, store


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_commands_that_archive(places: tuple[Shell, ObjectStore]) -> None:
    shell, store = places
    assert len(ARCHIVING) == 4
    # The catalog is in SQLite. pyiceberg gets the store's address as in the guide, not from the environment.
    options = "".join(f" --storage-option {name}={text}" for name, text in store.options.items())
    catalog = f"sqlite:///$PWD/catalog.db --iceberg-option warehouse=file://$PWD/warehouse{options}"
    for command in ARCHIVING:
        said = shell.run(command.replace("https://catalog.example.org", catalog) + " --once 2>&1", seconds=400)
        assert "archived " in said.splitlines()[-1], said
    for table in ("flights-table", "lake/flights", "lake/orders"):
        shell.run(f"python -c 'from deltalake import DeltaTable as D; assert D(\"{table}\").count() == 10'")
    [forgetting] = FORGETTING
    assert shell.run(forgetting) == "removed the card of flights into ./flights-table\n"
