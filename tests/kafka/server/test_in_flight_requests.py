"""Which requests of a connection are served at once, and which wait for what came before them."""

import pytest

from headrace.kafka import apis
from headrace.kafka.server.in_flight_requests import InFlightRequests

apis.load()  # as the listener does
PRODUCE, FETCH, METADATA, JOIN, HEARTBEAT = 0, 1, 3, 11, 12
SMALL, LARGE = 100, 20_000


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> InFlightRequests:
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.SLICE_S", 60)
    order = InFlightRequests()
    order.begin_slice(0, 0)
    return order


def begin(order: InFlightRequests, key: int) -> None:
    if key == PRODUCE:
        order.produces += 1
    else:
        order.exclusive += 1


@pytest.mark.parametrize("key", [PRODUCE, FETCH, METADATA, JOIN, HEARTBEAT])
@pytest.mark.parametrize("in_flight", [PRODUCE, FETCH, METADATA, JOIN, HEARTBEAT])
def test_only_a_produce_follows_a_produce(order: InFlightRequests, in_flight: int, key: int) -> None:
    assert not order.must_wait(key, SMALL)
    begin(order, in_flight)
    assert order.must_wait(key, SMALL) is not (in_flight == key == PRODUCE)
    assert order.must_wait_for_others(key) is order.must_wait(key, SMALL)


def test_nothing_follows_while_the_client_waits_for_its_quota(order: InFlightRequests) -> None:
    order.mute()
    order.mute()
    assert order.must_wait(PRODUCE, SMALL)
    order.unmute()
    assert not order.must_wait(PRODUCE, SMALL)


def test_a_client_that_takes_no_answers_is_served_nothing_but_appends(order: InFlightRequests) -> None:
    order.write_paused = True
    assert order.must_wait(FETCH, SMALL)
    assert not order.must_wait(PRODUCE, SMALL)
    order.write_paused = False
    order.due_bytes = 2 << 20
    assert order.must_wait(FETCH, SMALL)


def test_a_large_request_without_records_waits_for_a_turn_of_its_own(order: InFlightRequests) -> None:
    assert order.must_wait(METADATA, LARGE)
    assert not order.must_wait(PRODUCE, LARGE)


def test_a_slice_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.perf_counter", lambda: 100.0)
    order = InFlightRequests()
    order.begin_slice(99.0, 99.0)
    served = 0
    while True:
        order.quota -= 1
        if order.must_wait(PRODUCE, SMALL):
            break
        served += 1
    assert 0 < served < 1_000


def test_in_a_crowd_only_what_is_urgent_is_served_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.perf_counter", lambda: 100.0)
    order = InFlightRequests()
    order.begin_slice(100.0, turn_began=99.99)
    assert order.must_wait(JOIN, SMALL)
    assert not order.must_wait(HEARTBEAT, SMALL)
    assert not order.must_wait(PRODUCE, SMALL)
    order.begin_slice(100.0, turn_began=100.0)
    assert not order.must_wait(JOIN, SMALL)


def test_in_a_large_crowd_each_is_served_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.perf_counter", lambda: 100.0)
    order = InFlightRequests()
    order.begin_slice(100.0, turn_began=99.9)
    waits = []
    for _ in range(2):
        order.quota -= 1
        waits.append(order.must_wait(PRODUCE, SMALL))
    assert waits == [False, True]
    assert not order.must_wait_for_others(PRODUCE)


@pytest.mark.parametrize(("key", "size", "waits"), [
    (FETCH, 500, False), (METADATA, 500, False), (FETCH, 5_000, True), (METADATA, 5_000, True), (PRODUCE, 5_000, False),
])  # fmt: skip
def test_in_a_large_crowd_what_names_much_waits(
    monkeypatch: pytest.MonkeyPatch, key: int, size: int, waits: bool
) -> None:
    """Of hundreds that come at once each may take half a millisecond."""
    monkeypatch.setattr("headrace.kafka.server.in_flight_requests.perf_counter", lambda: 100.0)
    order = InFlightRequests()
    order.begin_slice(100.0, turn_began=99.98)
    assert not order.must_wait(key, size)
    order.begin_slice(100.0, turn_began=99.9)
    assert order.must_wait(key, size) is waits
