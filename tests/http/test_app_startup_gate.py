"""`/livez` and `/readyz`: before the server is open, while it is, without its storage, and when it ends."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from headrace.http.app import Health, StartupGate

PARTLY = Health(version="1", storage=True, detail="10.0.0.1:6379: no connection")
WELL = Health(version="1", storage=True)
FULL = Health(version="1", storage=True, detail="the disk is full; more", refusal="the disk is full")
ILL = Health(version="1", storage=False, detail="Redis is away")


async def ask(front: StartupGate, path: str, method: str = "GET") -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    path, _, query = path.partition("?")
    await front({"type": "http", "path": path, "method": method, "query_string": query.encode()}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


class App:
    """Answers when it is let."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.free.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def opened(app: App, health: Health = WELL) -> StartupGate:
    async def tell() -> Health:
        return health

    front = StartupGate()
    front.open(app, tell)
    return front


async def test_before_it_is_open_it_lives_and_is_not_ready() -> None:
    front = StartupGate()
    assert await ask(front, "/livez") == (200, {"status": "alive"})
    assert await ask(front, "/readyz") == (503, {"status": "starting"})
    for path in ("/", "/healthz", "/20180418/streams"):
        status, told = await ask(front, path)
        assert (status, told["code"]) == (503, "ServiceUnavailable")
        assert "starting" in told["message"]


async def test_open_it_is_ready_and_serves() -> None:
    app = App()
    app.free.set()
    front = opened(app)
    assert await ask(front, "/livez") == (200, {"status": "alive"})
    assert await ask(front, "/readyz") == (200, {"status": "ready"})
    assert await ask(front, "/anything") == (200, {})


async def test_without_its_storage_it_lives_and_is_not_ready() -> None:
    front = opened(App(), ILL)
    assert await ask(front, "/livez") == (200, {"status": "alive"})
    assert await ask(front, "/readyz") == (503, {"status": "failing", "detail": "Redis is away"})


async def test_with_a_part_of_its_storage_it_is_ready_and_says_what_is_not_there() -> None:
    """The other brokers miss that part, too: clients would be let in nowhere."""
    told = {"status": "ready", "detail": "10.0.0.1:6379: no connection"}
    assert await ask(opened(App(), PARTLY), "/readyz") == (200, told)


async def test_without_room_it_is_ready_for_readers_only() -> None:
    front = opened(App(), FULL)
    assert await ask(front, "/readyz") == (200, {"status": "ready", "detail": "the disk is full; more"})
    assert await ask(front, "/readyz?for=write") == (503, {"status": "read-only", "detail": "the disk is full"})


async def test_ready_for_writers_is_no_less_than_ready() -> None:
    partly = {"status": "ready", "detail": "10.0.0.1:6379: no connection"}
    assert await ask(opened(App()), "/readyz?for=write") == (200, {"status": "ready"})
    assert await ask(opened(App(), PARTLY), "/readyz?for=write") == (200, partly)
    assert await ask(opened(App(), ILL), "/readyz?for=write") == (
        503,
        {"status": "failing", "detail": "Redis is away"},
    )
    assert await ask(StartupGate(), "/readyz?for=write") == (503, {"status": "starting"})


@pytest.mark.parametrize("query", ["for=read", "for=", "for=write&for=%00"])
async def test_an_unknown_purpose_is_an_error(query: str) -> None:
    status, told = await ask(opened(App()), f"/readyz?{query}")
    assert (status, told["code"]) == (400, "InvalidParameter")
    assert "expected for=write" in told["message"]


async def test_asked_to_end_it_is_not_ready_and_answers_what_is_under_way() -> None:
    app = App()
    front = opened(app)
    under_way = asyncio.create_task(ask(front, "/slow"))
    while not app.asked:
        await asyncio.sleep(0)
    closing = asyncio.create_task(front.close())
    await asyncio.sleep(0)
    assert await ask(front, "/livez") == (200, {"status": "alive"})
    assert await ask(front, "/readyz") == (503, {"status": "stopping"})
    assert (await ask(front, "/more"))[0] == 503
    assert app.asked == 1
    app.free.set()
    await closing
    assert await under_way == (200, {})


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_other_methods_are_not_allowed(path: str) -> None:
    assert (await ask(StartupGate(), path, "POST"))[0] == 405
    assert (await ask(StartupGate(), path, "HEAD"))[0] in {200, 503}
