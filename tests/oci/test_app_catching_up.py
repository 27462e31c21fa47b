"""Before a client gets an error for a missing resource, the server looks for recent changes by other brokers."""

from types import SimpleNamespace
from typing import Any

from headrace.oci.app import OciApp
from headrace.oci.errors import OciError
from headrace.oci.faults import NONE
from headrace.testing.clock import ManualClock


async def test_a_change_that_is_heard_of_behind_the_look_up_has_it_looked_up_again() -> None:
    """Which changes are known is noted before the look-up: afterwards this one is among them."""
    told: list[str] = []
    known = 0

    def look_up(*_: object) -> Any:
        nonlocal known
        told.append("looked up")
        if known:
            raise OciError(409, "it is there")
        known = 1
        raise OciError(404, "it is not there")

    def catching_up() -> Any:
        before = known

        async def catch_up() -> bool:
            return known > before

        return catch_up

    reads = SimpleNamespace(take=lambda _: None, release=lambda _: None)
    broker = SimpleNamespace(reads=reads, access=SimpleNamespace(enabled=False))
    # Limits are asked right before an operation's handler.
    unlimited = SimpleNamespace(limiting=False)
    limits, faults = SimpleNamespace(call=look_up), SimpleNamespace(of=lambda *_: NONE)
    service: Any = SimpleNamespace(
        clock=ManualClock(), faults=faults, limits=limits, broker=broker, quotas=unlimited,
        settings=SimpleNamespace(enable=True),
    )  # fmt: skip
    app = OciApp(service)
    app.catching_up = catching_up
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("there is no body")

    path = b"/20180418/streams/any"
    scope: Any = {
        "type": "http",
        "method": "GET",
        "path": path.decode(),
        "raw_path": path,
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"localhost")],
    }
    await app(scope, receive, send)
    assert told == ["looked up", "looked up"]
    assert sent[0]["status"] == 409
