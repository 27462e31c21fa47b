"""`docs/keyspace.md` says what there is: every key, every field, nothing that is not."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.groups.model import (
    GroupHeader,
    OffsetAndMetadata,
    PendingOffset,
    StoredBalanced,
    StoredConsumer,
    StoredGrants,
    StoredInstance,
    StoredMember,
    StoredOwner,
    StoredPartitions,
    StoredStart,
)
from headrace.groups.sharing.model import StoredSharer, StoredShareTopic
from headrace.storage.layout import LAYOUT_VERSION, entries, segments
from headrace.storage.layout.keys import (
    Keyspace,
    aborted_of,
    barrier_of,
    clean_of,
    foreign_of,
    segment_of,
    transactions_of,
)
from headrace.topics.model import Topic
from headrace.transactions.model import StoredTransaction, TransactionState

PAGE = (Path(__file__).parents[3] / "docs" / "keyspace.md").read_text()
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / f"layout-{LAYOUT_VERSION}.json").read_text())


SHARED = (
    *(Keyspace().view, Keyspace().heartbeats, Keyspace().changes, Keyspace().leaders, Keyspace().revisions),
    *(Keyspace().lock("oci"), Keyspace().wanted("oci")),
)
"""What only an external Redis has, whose servers may be several; examples: `test_registry_membership.py`."""
TRANSACTION = Keyspace().transaction("id")
TRANSACTIONAL = (Keyspace().transactions, TRANSACTION, barrier_of(TRANSACTION))
"""What only a transactional producer makes; examples: `test_transactions.py`."""
BESIDE = [
    *(of("headrace:flights:0") for of in (foreign_of, barrier_of, transactions_of, aborted_of, clean_of)),
    segment_of("headrace:flights:0", 0),
]
"""Keys next to a log that the example does not need: see `test_log_state.py` and `test_segments.py`."""


def column(header: str) -> list[str]:
    """The first column of the table with that header."""
    table = PAGE.split(f"| {header} | ", 1)[1].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)


def test_the_version() -> None:
    assert f"Layout version **{LAYOUT_VERSION}**" in PAGE


def test_every_key_is_on_the_page_and_no_other() -> None:
    pattern = {
        name: re.compile(
            re.escape(name)
            .replace("<topic>", "[^:]+")
            .replace("<partition>", r"\d+")
            .replace("<group>", ".+")
            .replace("<id>", "[^:}]+")
            .replace("<kind>", "[^:]+")
            .replace("<name>", "[^:]+")
            .replace("<number>", r"\d+")
        )
        for name in column("key | type")
    }
    used = {
        name
        for key in (*GOLDEN, *SHARED, *TRANSACTIONAL, Keyspace().deleted, *BESIDE)
        for name in pattern
        if pattern[name].fullmatch(key)
    }
    assert used == set(pattern)
    assert all(any(each.fullmatch(key) for each in pattern.values()) for key in GOLDEN)


def test_fields_of_an_entry() -> None:
    entry = GOLDEN["headrace:flights:0"]["entries"][0]
    assert column("field of an entry") == [name for name in entry if name != "id"]
    assert column("field of an entry") == [name.decode() for name in (entries.BATCH, entries.NEWEST, entries.BYTES)]


def test_fields_of_the_state() -> None:
    fields = column("field of the state")
    # No append waits for replication there, none is transactional, and nothing is cleaned.
    assert sorted(fields) == sorted([*GOLDEN["{headrace:flights:0}:state"], "h", "x", segments.COPY])


def test_fields_of_the_list_of_segments() -> None:
    assert column("field of `:clean`") == [*segments.FIELDS, "writing"]


def test_fields_of_a_transactional_id() -> None:
    assert column("field of a transactional ID") == ["e", "state"]
    for state in TransactionState:
        assert f"`{state.value}`" in PAGE


def _named(field: str) -> str:
    member = "m-3" if field.startswith("sharer") else "m-2"
    return field.replace("<topic>", "flights").replace("<member id>", member)


def test_fields_of_a_group() -> None:
    fields = [_named(name) for name in column("field of a group")]
    assert sorted(fields) == sorted(GOLDEN["headrace:group:{default/board}"])


@pytest.mark.parametrize(
    "kind",
    [
        *(Topic, GroupHeader, StoredMember, OffsetAndMetadata, PendingOffset),
        *(StoredBalanced, StoredInstance, StoredOwner, StoredStart, StoredTransaction),
        *(StoredConsumer, StoredGrants, StoredPartitions, StoredSharer, StoredShareTopic),
    ],
)
def test_fields_of_values(kind: type[msgspec.Struct]) -> None:
    for name in kind.__struct_fields__:
        assert f"`{name}`" in PAGE, name
