"""ACLs as a broker keeps them: a change costs as much as its rules, and an answer never more than a few look-ups."""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from headrace.broker.admin import acl_authorizer
from headrace.broker.admin.acl_authorizer import AclAuthorizer, digest_of
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.ports import DocumentStorage
from headrace.broker.runtime.clock import SystemClock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.metrics.unreadable_values import Unreadable
from headrace.security.access.acls import Acl, AclFilter, Pattern
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, ResourceType, Rule

ALICE, HOST = Principal("alice"), "10.0.0.1"
READ, WRITE = Operation.READ, Operation.WRITE
RULES, ADDRESSES = 2_000, 100
READING = Rule(operation=READ, type=ResourceType.TOPIC, resources=lambda: ())
ANY_TOPIC = Rule(
    operation=Operation.IDEMPOTENT_WRITE,
    type=ResourceType.CLUSTER,
    resources=lambda: (),
    instead=(WRITE, ResourceType.TOPIC),
)


class Documents:
    """Documents in memory."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], bytes] = {}
        self.unreadable = Unreadable()

    async def load(self, kind: str) -> dict[str, bytes]:
        return {name: text for (of, name), text in sorted(self.stored.items()) if of == kind}

    async def save(self, changes: Mapping[tuple[str, str], bytes | None]) -> None:
        for place, text in changes.items():
            if text is None:
                self.stored.pop(place, None)
            else:
                self.stored[place] = text


def access_to(documents: Documents, **given: str) -> AclAuthorizer:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER} | {
        name.replace("_", "."): text for name, text in given.items()
    }
    return AclAuthorizer(cast("DocumentStorage", documents), BrokerSettings.of(settings), SystemClock())


def acl(name: str, **other: Any) -> Acl:
    given: dict[str, Any] = {"type": ResourceType.TOPIC, "principal": "User:*", "operation": READ, "allow": True}
    return Acl(**(given | {"name": name} | other))


KINDS: dict[str, Callable[[int], Acl]] = {
    "for everybody": lambda i: acl(f"topic-{i}"),
    "for a principal each": lambda i: acl(f"topic-{i}", principal=f"User:u{i}"),
    "prefixed": lambda i: acl(f"topic-{i}", pattern=Pattern.PREFIXED),
    "denying": lambda i: acl(f"topic-{i}", allow=False),
    "for a host each": lambda i: acl(f"topic-{i}", host=f"10.0.{i % 100}.1"),
    "for writing, which others deny": lambda i: acl(f"topic-{i // 2}", operation=WRITE, allow=bool(i % 2)),
}


@contextmanager
def calls() -> Iterator[list[int]]:
    """How many functions are called: a measure that the load of the machine does not change."""
    counted = [0]

    def count(_: object, event: str, __: object) -> None:
        counted[0] += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_not_charged_to_every_client(kind: str) -> None:
    async def run() -> tuple[int, int]:
        access = access_to(Documents())
        await access.create("c", [KINDS[kind](i) for i in range(RULES)], CooperativeScheduler().pace())
        known = [access.grants(ALICE, f"10.0.0.{i}", "c") for i in range(ADDRESSES)]
        with calls() as changed:
            await access.create("c", [acl("one more")], CooperativeScheduler().pace())
            for grants in known:
                assert grants is not None
                grants.allow(READING, "topic-7")
                grants.allow(ANY_TOPIC, CLUSTER_NAME)
        with calls() as new:
            for i in range(ADDRESSES):
                grants = access.grants(ALICE, f"10.0.1.{i}", "c")
                assert grants is not None
                grants.allow(READING, "topic-7")
        return changed[0], new[0]

    changed, new = asyncio.run(run())
    # One look at each rule for each address would be 200,000.
    assert changed < 30_000
    assert new < 10_000


def test_a_rule_that_cannot_be_read_denies_its_cluster_until_it_can_be() -> None:
    """It may have been a denial."""

    async def run() -> None:
        documents = Documents()
        access = access_to(documents)
        denied = acl("orders", allow=False)
        await access.create(
            "c", [acl("orders", principal="User:t/alice"), denied, acl("other")], CooperativeScheduler().pace()
        )
        await access.create("d", [acl("orders")], CooperativeScheduler().pace())
        place = (acl_authorizer.KIND, f"c/{digest_of(denied)}")
        text = documents.stored[place]
        access = access_to(documents)
        here, there = access.grants(ALICE, HOST, "c"), access.grants(ALICE, HOST, "d")
        assert here is not None
        assert there is not None
        for stored, orders, other in ((b"{", False, False), (text, False, True), (b"[]", False, False)):
            documents.stored[place] = stored
            await access.load()
            assert here.allow(READING, "orders") is orders
            assert here.allow(READING, "other") is other
            assert there.allow(READING, "orders")

    asyncio.run(run())


def test_a_change_holds_for_answers_that_were_remembered() -> None:
    async def run() -> None:
        documents = Documents()
        access, other = access_to(documents), access_to(documents)
        mine, theirs = access.grants(ALICE, HOST, "c"), other.grants(ALICE, HOST, "c")
        assert mine is not None
        assert theirs is not None
        for rules, expected in (
            ([acl("orders")], True),
            ([acl("orders", allow=False, host=f"::ffff:{HOST}")], False),
            ([acl("orders", allow=False, host=HOST)], False),
        ):
            await access.create("c", rules, CooperativeScheduler().pace())
            await other.reload(frozenset({acl_authorizer.KIND}))
            assert mine.allow(READING, "orders") is theirs.allow(READING, "orders") is expected
        # Two spellings of one host are two rules: it is denied until both are gone.
        for host, expected in ((HOST, False), (f"::ffff:{HOST}", True)):
            await access.delete("c", [AclFilter(host=host)], CooperativeScheduler().pace())
            await other.reload(frozenset({acl_authorizer.KIND}))
            assert mine.allow(READING, "orders") is theirs.allow(READING, "orders") is expected
        await access.forget("c")
        assert not mine.allow(READING, "orders")

    asyncio.run(run())


def test_rules_are_listed_in_order_whatever_came_and_went() -> None:
    async def run() -> list[list[str]]:
        access, pace = access_to(Documents()), CooperativeScheduler().pace()
        found = []
        for add, remove in (("dbf", ""), ("ac", "b"), ("b", "f"), ("", "a"), ("a", "d")):
            await access.create("c", [acl(name) for name in add], pace)
            await access.delete("c", [AclFilter(name=name) for name in remove], pace)
            found.append([each.name for each in await access.acls("c", AclFilter(), pace)])
        return found

    assert asyncio.run(run()) == [[*"bdf"], [*"acdf"], [*"abcd"], [*"bcd"], [*"abc"]]


def test_an_exact_filter_finds_its_rule_without_a_search() -> None:
    async def run() -> int:
        access, pace = access_to(Documents()), CooperativeScheduler().pace()
        acls = [acl(f"topic-{i}") for i in range(RULES)]
        await access.create("c", acls, pace)
        exact = [
            AclFilter(**{name: getattr(each, name) for name in Acl.__struct_fields__}, every_operation=False)
            for each in (*acls[:100], acl("missing"))
        ]
        with calls() as counted:
            gone = await access.delete("c", exact, pace)
        assert gone == [*([each] for each in acls[:100]), []]
        assert len(await access.acls("c", AclFilter(), pace)) == RULES - 100
        return counted[0]

    assert asyncio.run(run()) < 20_000


def test_answers_are_remembered_up_to_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_authorizer, "MOST_REMEMBERED", 100)

    async def run() -> int:
        access = access_to(Documents())
        await access.create("c", [acl("topic", pattern=Pattern.PREFIXED)], CooperativeScheduler().pace())
        most = 0
        everybody = [access.grants(ALICE, f"10.0.0.{i}", "c") for i in range(10)]
        for number in range(100):
            for grants in everybody:
                assert grants is not None
                assert grants.allow(READING, f"topic-{number}")
                assert not grants.allow(READING, f"other-{number}")
            most = max(most, sum(len(each.known(READING)) for each in everybody if each is not None))
        return most

    assert asyncio.run(run()) <= 100
