"""How many connections there may be, and whose they are."""

import pytest

from headrace.broker.admin.connections import ConnectionLimits

MANY = 1_000


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::1", "::2", False),
        ("local", "local", True),
        ("local", "127.0.0.1", False),
    ],
)
def test_connections_are_counted_by_whose_they_are(first: str, second: str, *, same: bool) -> None:
    limits = ConnectionLimits(MANY, 1)
    assert limits.admit(first) == ""
    assert bool(limits.admit(second)) is same
    limits.forget(second)
    limits.forget(first)
    assert limits.admit(second) == "", "who is gone is counted no more"
