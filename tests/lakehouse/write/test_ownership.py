"""A table belongs to one topic of one server; the table of another one is refused unless that is allowed."""

from pathlib import Path

import pytest

from headrace.client.errors import TableError
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.ownership import CLUSTER, TOPIC, Owner, claim
from headrace.lakehouse.write.table import ArchiveTable, WrittenFile

FLIGHTS, ORDERS = Owner("flights", "here"), Owner("orders", "here")


def made(folder: Path, owner: Owner | None = None) -> ArchiveTable:
    return ArchiveTable(Place.of(str(folder / "t")), properties=None if owner is None else owner.properties)


def fill(table: ArchiveTable, topic: str) -> None:
    file = WrittenFile(f"{topic}.parquet", topic, 0, 0, 1, 1, 1, 0, 0)
    table.snapshot().commit(f"id of {topic}", [file], {0: 1})


def test_a_table_belongs_to_the_topic_that_it_was_made_for(tmp_path: Path) -> None:
    assert claim(made(tmp_path, FLIGHTS), FLIGHTS, shared=False) == ""
    # Empty, and without a file that could name the topic.
    with pytest.raises(TableError, match=r"/t belongs to topic 'flights': name another table, or .* --share-table"):
        claim(made(tmp_path, ORDERS), ORDERS, shared=False)
    table = made(tmp_path, ORDERS)
    careful = claim(table, ORDERS, shared=True)
    assert careful.endswith("/t belongs to topic 'flights'; the records of 'orders' are added")
    assert table.noted(TOPIC) == "flights"
    fill(table, "flights")
    assert "has records of 'flights' as well" in claim(table, ORDERS, shared=True)
    assert claim(made(tmp_path), FLIGHTS, shared=False) == "", "its own archive goes on"


def test_a_topic_of_another_server_is_another_topic(tmp_path: Path) -> None:
    table = made(tmp_path, FLIGHTS)
    with pytest.raises(TableError, match=r"topic 'flights' of another server \(cluster ID here, this one has there\)"):
        claim(table, Owner("flights", "there"), shared=False)
    assert "of another server" in claim(table, Owner("flights", "there"), shared=True)
    assert claim(table, Owner("flights"), shared=False) == "", "a storage that no server has used"


def test_a_table_of_an_earlier_version_belongs_to_the_topics_of_its_files(tmp_path: Path) -> None:
    table = made(tmp_path)
    fill(table, "flights")
    with pytest.raises(TableError, match="belongs to topic 'flights'"):
        claim(table, ORDERS, shared=False)
    assert table.noted(TOPIC) is None
    assert claim(table, FLIGHTS, shared=False) == ""
    assert (made(tmp_path).noted(TOPIC), made(tmp_path).noted(CLUSTER)) == ("flights", "here")
    version = table.snapshot().version
    assert claim(table, FLIGHTS, shared=False) == ""
    assert table.snapshot().version == version, "it is noted once"


def test_a_table_that_topics_have_shared_stays_shared(tmp_path: Path) -> None:
    table = made(tmp_path)
    fill(table, "flights")
    fill(table, "orders")
    assert "has records of 'orders' as well" in claim(table, FLIGHTS, shared=False)
    assert "has records of 'flights' as well" in claim(table, ORDERS, shared=False)
    assert table.noted(TOPIC) is None


def test_of_two_first_archives_one_gets_the_table(tmp_path: Path) -> None:
    table, other = made(tmp_path), made(tmp_path)
    assert claim(table, FLIGHTS, shared=False) == ""
    with pytest.raises(TableError, match="belongs to topic 'flights'"):
        claim(other, ORDERS, shared=False)
