"""Requests that wait for something else than the server, for as long as they like, leave room for all others."""

import contextlib
import select
from collections.abc import Iterator

import pytest
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch, fetch_request

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.protocol.message import Message
from headrace.testing import Server, server

MIB = 1 << 20
LIMIT = 8 * MIB
FOR_EVER_MS = 2**31 - 1


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(queued_max_request_bytes=LIMIT, group_min_session_timeout_ms=6_000) as started:
        yield started


def ask_twice(wire: Wire) -> None:
    """A known client sends requests: those after the first are read only if there is memory."""
    for _ in range(2):
        wire.ask(m.ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)


@contextlib.contextmanager
def clients(server: Server, count: int) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Wire(server.kafka, timeout_s=60)) for _ in range(count)]


def answered(waiting: list[Wire]) -> list[Wire]:
    """Those for whom something has come."""
    ready, _, _ = select.select([each.socket for each in waiting], [], [], 0)
    return [each for each in waiting if each.socket in ready]


def large_fetch(topic: str, max_wait_ms: int = FOR_EVER_MS) -> Message:
    asked = fetch_request([(topic, 0, 0)], max_wait_ms=max_wait_ms)
    asked.rack_id = "r" * MIB
    return asked


def join(group: str, instance: str, metadata: bytes = b"") -> Message:
    protocols = [m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)]
    return m.JoinGroupRequest(
        group_id=group,
        group_instance_id=instance,
        session_timeout_ms=600_000,
        rebalance_timeout_ms=FOR_EVER_MS,
        protocol_type="consumer",
        protocols=protocols,
    )


def test_waiting_fetches_block_no_client(running: Server) -> None:
    with Wire(running.kafka, timeout_s=20) as other, clients(running, 20) as waiting:
        other.create("parked")
        for each in waiting:
            each.send(large_fetch("parked"), 12)
        ask_twice(other)
        # Half of the memory may wait; who comes then is answered soon, with nothing.
        wait_for(lambda: len(answered(waiting)) >= 16, "answers")
        early = answered(waiting)
        assert {each.receive().responses[0].partitions[0].error_code for each in early} == {0}
        left = [each for each in waiting if each not in early]
        assert left
        other.produce("parked", batch(b"x"))
        assert any(each.receive().responses[0].partitions[0].records for each in left)


def test_what_was_counted_is_not_any_longer_once_it_is_answered_or_its_client_gone(running: Server) -> None:
    with Wire(running.kafka, timeout_s=20) as other:
        other.create("again")
        for _ in range(3):
            with clients(running, 10) as waiting:
                for each in waiting:
                    each.send(large_fetch("again"), 12)
                ask_twice(other)
        for _ in range(20):
            other.ask(large_fetch("again", 1), 12)

        def waits() -> bool:
            """Whether a fetch still waits when another client was answered that came much later."""
            with clients(running, 1) as [late]:
                late.send(large_fetch("again", 2_000), 12)
                for _ in range(50):
                    other.ask(fetch_request([("again", 0, 0)], max_wait_ms=10), 12)
                other.produce("again", batch(b"x"))
                return bool(late.receive().responses[0].partitions[0].records)

        wait_for(waits, "room for a fetch that waits")


def test_members_that_wait_for_others_block_no_client(running: Server) -> None:
    with Wire(running.kafka, timeout_s=20) as other, clients(running, 20) as waiting:
        for number, each in enumerate(waiting):
            assert other.ask(join(f"g{number}", "first"), 5).error_code == 0
            each.send(join(f"g{number}", "second", bytes(MIB)), 5)
        ask_twice(other)
        # Their clients ask again, as where the coordinator is not there for a moment.
        wait_for(lambda: len(answered(waiting)) >= 16, "answers")
        codes = {each.receive().error_code for each in answered(waiting)}
        assert codes == {Code.COORDINATOR_NOT_AVAILABLE}
