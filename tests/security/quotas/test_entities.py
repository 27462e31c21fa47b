"""Which quota holds for whom, and what a quota may be."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.quotas.entities import Entity, Filter, InvalidQuota, Key, checked, held, held_by_address

NAMES = st.sampled_from(["jane", "bob", None])
CLIENTS = st.sampled_from(["app", "other", None])
PARTS = st.one_of(
    st.tuples(st.tuples(st.just("user"), NAMES)),
    st.tuples(st.tuples(st.just("client-id"), CLIENTS)),
    st.tuples(st.tuples(st.just("user"), NAMES), st.tuples(st.just("client-id"), CLIENTS)),
)
QUOTAS = st.dictionaries(PARTS.map(Entity.of), st.just(7.0).map(lambda value: {Key.PRODUCE: value}))
ABSENT = "-"


@given(QUOTAS)
def test_the_most_particular_quota_holds(quotas: Mapping[Entity, Mapping[Key, float]]) -> None:
    """By the order of Kafka's documentation ("Design: Quotas"), computed here from the names of each entity."""
    for user, client in itertools.product(("jane", "eve"), ("app", "mine")):

        def rank(entity: Entity, user: str = user, client: str = client) -> tuple[int, int] | None:
            names = entity.names
            of_user, of_client = names.get("user", ABSENT), names.get("client-id", ABSENT)
            if of_user not in {user, None, ABSENT} or of_client not in {client, None, ABSENT}:
                return None
            users = {user: 2, None: 1, ABSENT: 0}[of_user]
            return users, {client: 2, None: 1, ABSENT: 0}[of_client]

        fitting = {found: entity for entity in quotas if (found := rank(entity)) is not None}
        holding = held(quotas, Key.PRODUCE, user, client)
        if not fitting:
            assert holding is None
            continue
        best = fitting[max(fitting)]
        assert holding is not None
        assert holding.limit == 7.0
        # Clients share it if they differ only in names that the quota does not have.
        assert holding.shared == (user if "user" in best.names else None, client if "client-id" in best.names else None)
        assert held(quotas, Key.FETCH, user, client) is None


def test_an_address_has_its_own_quota_or_the_default() -> None:
    quotas = {
        Entity.of([("ip", "::1")]): {Key.CONNECTIONS: 5.0},
        Entity.of([("ip", None)]): {Key.CONNECTIONS: 9.0},
    }
    assert held_by_address(quotas, "::1") == (5, "::1")
    assert held_by_address(quotas, "10.0.0.1") == (9, None)
    assert held_by_address({}, "10.0.0.1") is None
    assert Entity.of([("ip", "0:0:0:0:0:0:0:1")]) == Entity.of([("ip", "::1")])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "empty client quota entity"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("topic", "a")], "Unhandled client quota entity type: topic"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("ip", "::1")], "should not be combined"),
        ([("ip", "not-an-address")], "not-an-address is not a valid IP"),
    ],
)
def test_entities_that_there_cannot_be(parts: list[tuple[str, str | None]], said: str) -> None:
    with pytest.raises(InvalidQuota, match=said):
        Entity.of(parts)


@pytest.mark.parametrize(
    ("parts", "key", "value", "said"),
    [
        ([("user", "a")], "connection_creation_rate", 1, "Invalid configuration key connection_creation_rate"),
        ([("ip", None)], "producer_byte_rate", 1, "Invalid configuration key producer_byte_rate"),
        ([("user", "a")], "nonsense", 1, "Invalid configuration key nonsense"),
        ([("user", "a")], "producer_byte_rate", 0, "must be greater than 0"),
        ([("user", "a")], "request_percentage", float("nan"), "must be greater than 0"),
        ([("user", "a")], "request_percentage", float("inf"), "must be greater than 0"),
        ([("user", "a")], "consumer_byte_rate", 1.5, "consumer_byte_rate cannot be a fractional value"),
        ([("user", "a")], "producer_byte_rate", 1e-310, "producer_byte_rate cannot be a fractional value"),
        ([("user", "a")], "consumer_byte_rate", 1e19, "too large for a LONG"),
        ([("ip", None)], "connection_creation_rate", 2**31, "too large for an INT"),
    ],
)
def test_quotas_that_there_cannot_be(parts: list[tuple[str, str | None]], key: str, value: float, said: str) -> None:
    with pytest.raises(InvalidQuota, match=said):
        checked(Entity.of(parts), key, value)
    assert checked(Entity.of([("user", "a")]), "request_percentage", 0.5) is Key.REQUESTS


def test_filters_mean_names_defaults_and_types() -> None:
    jane, everybody = Entity.of([("user", "jane")]), Entity.of([("user", None)])
    both = Entity.of([("client-id", "app"), ("user", "jane")])
    entities = [jane, everybody, both]

    def meant(strict: bool, exact: dict[str, str | None], *any_of: str) -> list[Entity]:
        return [each for each in entities if Filter(exact, frozenset(any_of), strict).means(each)]

    assert meant(False, {}) == entities
    assert meant(True, {}) == []
    assert meant(False, {"user": "jane"}) == [jane, both]
    assert meant(True, {"user": "jane"}) == [jane]
    assert meant(True, {"user": None}) == [everybody]
    assert meant(True, {}, "user") == [jane, everybody]
    assert meant(False, {}, "client-id") == [both]
