"""A client that keeps changing its client id evicts no other client's meter, and gets no new limit each time."""

from functools import partial

from headrace.broker.admin.quotas import Meter, Meters, Throttled
from headrace.security.quotas.entities import Held, Key
from headrace.security.quotas.rates import Windows

MOST, OF_ONE = 50, 10
WINDOWS = Windows(11, 1)
LIMIT = 100.0
ALL_OVER_MS = 60_000


class Asking:
    """Charges the meters of clients."""

    def __init__(self) -> None:
        self.meters = Meters[Meter](MOST, OF_ONE)
        self.ticks_ms = 0

    def charge(self, user: str, client_id: str, amount: float = 1.0, host: str = "", limit: float = LIMIT) -> int:
        """How long a client has to wait."""
        make = partial(Meter, limit, WINDOWS, Throttled(), self.ticks_ms)
        holds = Held(limit, (user, client_id))
        return self.meters.found(Key.PRODUCE, holds, (user, host), make, self.ticks_ms).charge(amount, self.ticks_ms)


def test_changing_client_ids_evict_no_meter() -> None:
    asking = Asking()
    waiting_ms = asking.charge("jane", "app", 10_000)
    assert waiting_ms > 0
    for number in range(10_001):
        asking.charge("mallory", f"id-{number}")
        asking.charge("ANONYMOUS", f"id-{number}", host="192.0.2.1")
    assert asking.charge("jane", "app", 0) == waiting_ms


def test_who_has_too_many_shares_one() -> None:
    asking = Asking()
    waits = [asking.charge("mallory", f"id-{number}", 900) for number in range(OF_ONE + 3)]
    assert waits[: OF_ONE + 1] == [0] * (OF_ONE + 1)
    assert all(waits[OF_ONE + 1 :])
    # Not with others, from an address of their own either, and not with what has another limit.
    assert asking.charge("jane", "app", 900) == 0
    assert asking.charge("ANONYMOUS", "app", 900, host="192.0.2.1") == 0
    assert asking.charge("mallory", "with a limit of its own", 900, limit=2 * LIMIT) == 0


def test_when_all_are_taken_those_who_come_share_one_and_the_others_keep_theirs() -> None:
    asking = Asking()
    first = [asking.charge(f"user-{number}", "app", 900) for number in range(MOST)]
    later = [asking.charge(f"late-{number}", "app", 900) for number in range(3)]
    assert not any(first)
    assert [bool(each) for each in later] == [False, True, True]
    assert asking.charge("user-0", "app", 900) > 0


def test_unused_meters_make_room() -> None:
    asking = Asking()
    for number in range(OF_ONE + 3):
        asking.charge("mallory", f"id-{number}", 900)
    asking.ticks_ms += ALL_OVER_MS
    assert [asking.charge("mallory", f"new-{number}", 900) for number in range(OF_ONE)] == [0] * OF_ONE
