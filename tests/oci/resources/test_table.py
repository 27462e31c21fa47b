"""Deleted resources, work requests and retry tokens have totals, and so have resources in use."""

import itertools

import msgspec
import pytest
from tests.harness.memory import MemoryStorage
from tests.oci.resources.conftest import COMPARTMENT, World

from headrace.oci.errors import OciError
from headrace.oci.resources import table
from headrace.oci.resources.catalog import TokenUse
from headrace.oci.resources.documents import Documents
from headrace.oci.resources.records import HarnessRecord, RetryToken, WorkRequestRecord
from headrace.oci.settings import OciSettings
from headrace.testing.clock import ManualClock


class _Store:
    """The documents of one server, and the next one's."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.clock = ManualClock()
        self.documents = self.again()
        self._names = itertools.count()

    def again(self) -> Documents:
        return Documents(self.storage.documents, OciSettings.of({}), self.clock)

    async def harness(self, tags: int = 0, *, deleted: bool = True) -> str:
        """Make a harness, and delete it; its id."""
        documents = self.documents
        made = HarnessRecord(
            id=f"h{next(self._names)}",
            name="h",
            compartment=COMPARTMENT,
            created_ms=0,
            freeform_tags={"t": "x" * tags},
        )
        await documents.exclusively(documents.save({(documents.harnesses, made.id): made}))
        if deleted:
            self.clock.advance(1_000)
            gone = documents.changed(made, "DELETING")
            await documents.exclusively(documents.save({(documents.harnesses, gone.id): gone}))
        return made.id


@pytest.fixture
def store() -> _Store:
    return _Store()


async def test_the_oldest_deleted_resources_are_forgotten_by_their_bytes(store: _Store) -> None:
    """1,500 with 60 KB of tags each took 214 MiB for 90 days."""
    names = [await store.harness(60_000) for _ in range(400)]
    kept = store.documents.harnesses
    assert table.MOST_REMEMBERED_BYTES - 61_000 < kept.remembered_bytes <= table.MOST_REMEMBERED_BYTES
    assert list(kept.values) == names[-len(kept.values) :]
    stored = await store.storage.documents.load(kept.kind)
    assert sorted(stored) == sorted(kept.values)
    assert sum(map(len, stored.values())) == kept.remembered_bytes


async def test_the_oldest_deleted_resources_are_forgotten_by_their_number(
    store: _Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_REMEMBERED", 10)
    staying = await store.harness(deleted=False)
    names = [await store.harness() for _ in range(25)]
    assert set(store.documents.harnesses.values) == {staying, *names[-10:]}
    # The next server goes by the same order.
    store.documents = store.again()
    await store.documents.reload(frozenset())
    last = await store.harness()
    assert set(store.documents.harnesses.values) == {staying, *names[-9:], last}


async def test_the_oldest_work_requests_are_forgotten(store: _Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_REMEMBERED", 10)
    documents = store.documents
    made: list[WorkRequestRecord] = []
    for _ in range(25):
        store.clock.advance(1_000)
        made.append(documents.request("CREATE_STREAM", COMPARTMENT))
        await documents.exclusively(documents.save({(documents.requests, made[-1].id): made[-1]}))
    assert list(documents.requests.values) == [each.id for each in made[-10:]]


async def test_a_retry_token_is_refused_and_never_forgotten_early(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was used for would be created once more."""
    monkeypatch.setattr(table, "MOST_TOKENS", 3)

    async def create(name: str, token: str | None) -> str:
        used = TokenUse.of(token, "CreateConnectHarness", "user", name)
        record, _ = await world.catalog.create_harness(used, name, COMPARTMENT, {}, {})
        return record.id

    first = [await create(f"h{each}", f"token {each}") for each in range(3)]
    with pytest.raises(OciError, match="3 retry tokens have been used") as refused:
        await create("h3", "token 3")
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "86400")
    assert await create("h0", "token 0") == first[0]
    await create("h3", None)
    world.clock.advance(86_400_000)
    assert await create("h4", "token 4")
    assert len(world.catalog.documents.tokens.values) <= 3


async def test_resources_in_use_have_a_total(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_IN_USE", 2)
    for name in ("a", "b"):
        await world.catalog.create_harness(None, name, COMPARTMENT, {}, {})
    with pytest.raises(OciError, match="delete one first") as refused:
        await world.catalog.create_harness(None, "c", COMPARTMENT, {}, {})
    assert (refused.value.status, refused.value.code) == (400, "LimitExceeded")
    [made, _] = world.catalog.harnesses.all()
    await world.catalog.delete_harness(f"ocid1.connectharness.oc1..{made.id}", None)
    await world.catalog.create_harness(None, "c", COMPARTMENT, {}, {})


async def test_tags_of_resources_in_use_have_a_total(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_IN_USE_BYTES", 2_000)
    record = await world.stream("a", freeform_tags={"t": "x" * 3_000})
    with pytest.raises(OciError, match="take tags away") as refused:
        await world.stream("b")
    assert refused.value.code == "LimitExceeded"
    stream = world.catalog.streams.ocid(record.id)
    with pytest.raises(OciError, match="take tags away"):
        await world.catalog.update_stream(stream, None, None, {"freeform_tags": {"t": "x" * 4_000}})
    await world.catalog.update_stream(stream, None, None, {"freeform_tags": {}})
    await world.stream("b")


def test_what_is_counted_follows_each_change() -> None:
    tokens = table.Table("kind", RetryToken)
    token = RetryToken(resource="r", work_request="w", request="d", expires_ms=1)
    size = len(msgspec.json.encode(token))
    for _ in range(2):
        tokens.put("a", token, size)
        assert (tokens.used_bytes, tokens.remembered_bytes) == (size, 0)
    tokens.drop("a")
    tokens.drop("a")
    assert (tokens.used_bytes, tokens.used, tokens.values) == (0, {}, {})
