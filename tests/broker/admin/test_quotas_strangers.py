"""Quotas of authenticated users hold, whatever clients without a login do."""

from tests.harness.memory import MemoryStorage

from headrace.broker.admin.quotas import MOST, Quotas
from headrace.broker.config.settings import BrokerSettings
from headrace.security.quotas.entities import IP, USER, Entity, Key
from headrace.testing.clock import ManualClock

LIMIT = 100.0


def test_strangers_with_many_addresses_take_no_meters_from_users() -> None:
    quotas = Quotas(MemoryStorage().documents, BrokerSettings.of({}), ManualClock()).of("default")
    quotas.take({Entity(((IP, None),)): {Key.CONNECTIONS: LIMIT}, Entity(((USER, None),)): {Key.PRODUCE: LIMIT}})
    for number in range(MOST):
        assert quotas.connecting(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1") == 0

    def waits_ms(user: str, size: float) -> int:
        limits = quotas.limits(user, "app")
        assert limits is not None
        assert limits.produce is not None
        return limits.produce.charge(size, 0)

    assert waits_ms("mallory", 100_000) > 0
    assert waits_ms("jane", 1) == 0


def test_a_network_of_ipv6_is_one_address_but_for_quotas_of_its_own() -> None:
    quotas = Quotas(MemoryStorage().documents, BrokerSettings.of({}), ManualClock()).of("default")
    own = Entity(((IP, "2001:db8::7"),))
    quotas.take({Entity(((IP, None),)): {Key.CONNECTIONS: 1.0}, own: {Key.CONNECTIONS: LIMIT}})
    let_in = [quotas.connecting(f"2001:db8::{number:x}") for number in range(100, 200)].count(0)
    assert 0 < let_in < 100, "the default holds for the network, and not for each address"
    assert quotas.connecting("2001:db8::7") == 0, "this address has a quota of its own"
    assert quotas.connecting("2001:db8:0:1::1") == 0, "another network"
    assert [quotas.connecting(f"10.0.0.{number}") for number in range(1, 101)] == [0] * 100
    # The same over IPv6, as a listener for both has them.
    again = [quotas.connecting("::ffff:10.0.0.1") for _ in range(100)]
    assert again.count(0) == let_in - 1
