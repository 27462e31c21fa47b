"""Quotas of those who have logged in hold, whatever strangers do."""

from tests.harness.memory import MemoryStorage

from headrace.broker.meters import MOST
from headrace.broker.quotas import Quotas
from headrace.broker.settings import BrokerSettings
from headrace.quotas.entities import IP, USER, Entity, Key
from headrace.testing.clock import ManualClock

LIMIT = 100.0


def test_strangers_with_many_addresses_take_no_meters_from_users() -> None:
    quotas = Quotas(MemoryStorage().documents, BrokerSettings.of({}), ManualClock()).of("default")
    quotas.take({Entity(((IP, None),)): {Key.CONNECTIONS: LIMIT}, Entity(((USER, None),)): {Key.PRODUCE: LIMIT}})
    for number in range(MOST):
        assert quotas.connecting(f"2001:db8::{number:x}") == 0

    def waits_ms(user: str, size: float) -> int:
        limits = quotas.limits(user, "app")
        assert limits is not None
        assert limits.produce is not None
        return limits.produce.charge(size, 0)

    assert waits_ms("mallory", 100_000) > 0
    assert waits_ms("jane", 1) == 0
