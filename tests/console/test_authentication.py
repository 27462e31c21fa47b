"""Access to pages and metrics: from this machine, and from anywhere by HTTP Basic."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.harness.memory import MemoryStorage

from headrace.broker.admin.audit import Audit
from headrace.broker.admin.users import Users
from headrace.broker.logins import Bearer
from headrace.console.authentication import AGAIN_MS, Visitors
from headrace.console.pages import asker_of
from headrace.console.registry import PRINCIPAL, Viewer
from headrace.console.sessions import Sessions
from headrace.security.access.credentials import Mechanism
from headrace.security.access.listeners import is_loopback
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.testing.clock import ManualClock, MovableClock

HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"


@pytest.fixture
async def users() -> AsyncIterator[Users]:
    """No users yet."""
    made = Users(MemoryStorage().documents, MovableClock())
    await made.load()
    yield made
    made.close()


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


async def ask(users: Users, peer: str | None, authorization: bytes | None = None) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of the response; the page shows the user."""
    clock = MovableClock()
    clock.bind(asyncio.get_running_loop())
    visitors = Visitors(
        users, None, Sessions(users, clock, 60_000), Audit(clock), clock, 0, is_loopback, "127.0.0.1:9092"
    )

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        shown = visitors.refusal(Request(scope)) or PlainTextResponse(str(scope.get(PRINCIPAL, ANONYMOUS)))
        await shown(scope, receive, send)

    return await answer(visitors.known(page), peer, authorization)


async def answer(app: ASGIApp, peer: str | None, authorization: bytes | None) -> tuple[int, str, dict[str, str]]:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        raise AssertionError("nothing is read of the body")

    async def send(message: object) -> None:
        sent.append(message)  # type: ignore[arg-type]

    headers = [] if authorization is None else [(b"authorization", authorization)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers, "client": peer and (peer, 5)}
    await app(scope, receive, send)
    told = {name.decode(): text.decode() for name, text in sent[0]["headers"]}  # type: ignore[attr-defined]
    return sent[0]["status"], bytes(sent[1]["body"]).decode(), told  # type: ignore[call-overload, return-value]


@pytest.mark.parametrize("peer", [HERE, "::1"])
async def test_this_machine_sees_everything(users: Users, peer: str) -> None:
    assert (await ask(users, peer))[:2] == (200, "User:ANONYMOUS")
    await users.create("jane", "secret")
    assert (await ask(users, peer))[:2] == (200, "User:ANONYMOUS")
    assert (await ask(users, peer, basic("jane:secret")))[:2] == (200, "User:jane")


@pytest.mark.parametrize("peer", [ELSEWHERE, "2001:db8::1", None])
async def test_others_see_nothing_without_a_login(users: Users, peer: str | None) -> None:
    status, text, headers = await ask(users, peer)
    assert (status, "headrace users create" in text, "www-authenticate" in headers) == (403, True, False)
    await users.create("jane", "secret")
    status, _, headers = await ask(users, peer)
    assert (status, headers["www-authenticate"]) == (401, 'Basic realm="Headrace", charset="UTF-8"')
    assert (await ask(users, peer, basic("jane:secret")))[:2] == (200, "User:jane")


@pytest.mark.parametrize(
    "given",
    [
        basic("jane:wrong"), basic("joe:secret"), basic("jane"), basic(""), b"Basic", b"Basic ", b"Basic \xff\xfe",
        b"Basic " + b"A" * 1_000_000, basic("jane:secret")[:-3] + b"=\x00", b"basic " + basic("jane:")[6:],
        basic("ANONYMOUS:"), b"Bearer jane:secret", b"Signature version=1",
    ],
)  # fmt: skip
async def test_other_visitors_are_rejected(users: Users, given: bytes) -> None:
    await users.create("jane", "secret")
    assert (await ask(users, ELSEWHERE, given))[0] == 401


async def test_a_password_with_colons_and_without_ascii(users: Users) -> None:
    await users.create("jöe", "a:b:ü")
    assert (await ask(users, ELSEWHERE, basic("jöe:a:b:ü")))[:2] == (200, "User:jöe")


async def test_a_refused_login_is_logged_without_its_password(users: Users) -> None:
    with structlog.testing.capture_logs() as logged:
        await ask(users, ELSEWHERE, basic("joe:hunter2"))
    (line,) = logged
    assert (line["principal"], line["client"]) == (str(Principal("joe")), ELSEWHERE)
    assert "hunter2" not in str(line)


async def test_repeated_requests_are_logged_once(users: Users) -> None:
    await users.create("jane", "secret")
    clock = ManualClock()

    async def check(_token: str) -> Bearer:
        return Bearer("joe", 1_000)

    visitors = Visitors(
        users, check, Sessions(users, clock, 60_000), Audit(clock), clock, 0, is_loopback, "127.0.0.1:9092"
    )
    app = visitors.known(PlainTextResponse("shown"))

    async def come(*logins: bytes, peer: str = ELSEWHERE) -> list[tuple[str, str, str]]:
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                for login in logins:
                    assert (await answer(app, peer, login))[0] == 200
        return [(line["principal"], line["client"], line["reason"]) for line in logged if line["event"] == "logged in"]

    both = basic("jane:secret"), b"Bearer any"
    assert await come(*both) == [("User:jane", ELSEWHERE, "HTTP Basic"), ("User:joe", ELSEWHERE, "HTTP Bearer")]
    assert await come(*both) == []
    assert await come(both[0], peer="192.0.2.8") == [("User:jane", "192.0.2.8", "HTTP Basic")]
    # A scraper sends requests every few seconds; a client that returns after a long time is logged again.
    clock.advance(AGAIN_MS // 2)
    assert await come(*both) == []
    clock.advance(AGAIN_MS)
    assert await come(both[0]) == [("User:jane", ELSEWHERE, "HTTP Basic")]


async def test_open_streams_check_whether_the_login_is_valid(users: Users) -> None:
    clock = ManualClock()

    async def check(_token: str) -> Bearer:
        return Bearer("jane", 1_000)

    visitors = Visitors(
        users, check, Sessions(users, clock, 60_000), Audit(clock), clock, 0, is_loopback, "127.0.0.1:9092"
    )
    askers: list[Viewer] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        askers.append(asker_of(Request(scope)))
        await PlainTextResponse("shown")(scope, receive, send)

    for name in ("jane", "joe"):
        await users.create(name, "secret")
    for given in (None, b"Bearer good", basic("jane:secret"), basic("joe:secret")):
        assert (await answer(visitors.known(page), HERE, given))[0] == 200

    def lasting() -> list[bool]:
        return [asker.lasts() for asker in askers]

    clock.advance(999)
    await users.reload(frozenset())
    assert lasting() == [True, True, True, True]
    clock.advance(1)
    assert lasting() == [True, False, True, True]
    await users.create("jane", "other")
    assert lasting() == [True, False, False, True]
    await users.save(dict.fromkeys([("joe", each) for each in Mechanism]))
    assert lasting() == [True, False, False, False]
