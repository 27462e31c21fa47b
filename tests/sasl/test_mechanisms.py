"""Users and mechanisms without a network: accepted logins, and no hints about existing users."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from headrace.broker.admin import users as module
from headrace.broker.admin.users import TooManyLogins, TooManyUsers, Users
from headrace.broker.broker import Broker
from headrace.broker.logins import Admitted, Answer, LoginRefused
from headrace.broker.runtime.clock import SystemClock
from headrace.membership.view import ALONE, Lock
from headrace.metrics.unreadable_values import Unreadable
from headrace.sasl.listener import Plain
from headrace.sasl.scram import Scram
from headrace.security.access.credentials import LEAST_ITERATIONS, Credential, Mechanism, salt
from headrace.security.access.principal import Principal

BROKER = cast("Broker", object())
BOTH = list(Mechanism)


class Documents:
    """What a storage keeps."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    unreadable = Unreadable()

    async def load(self, kind: str) -> dict[str, bytes]:
        return {name: value for (of, name), value in sorted(self.kept.items()) if of == kind}

    async def find(self, kind: str, names: Sequence[str]) -> dict[str, bytes]:
        return {name: self.kept[kind, name] for name in names if (kind, name) in self.kept}

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        return self.kept.setdefault((kind, name), document)

    def locked(self, name: str) -> AbstractAsyncContextManager[Lock]:
        return nullcontext(ALONE)

    async def save(
        self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None
    ) -> Mapping[str, int]:
        self.kept |= {key: value for key, value in changes.items() if value is not None}
        for key, value in changes.items():
            if value is None:
                self.kept.pop(key, None)
        return {}


@pytest.fixture
async def users() -> AsyncIterator[Users]:
    """Jane, whose password is secret."""
    made = await opened(Documents())
    await made.create("jane", "secret")
    yield made
    made.close()


async def opened(documents: Documents) -> Users:
    made = Users(documents, SystemClock())
    await made.load()
    return made


def admitted(name: str) -> Admitted:
    return Admitted(Principal(name), BROKER)


async def login(users: Users, mechanism: Mechanism, name: str, password: str) -> Answer:
    client = ScramClient([mechanism.value], name, password)
    server = Scram(mechanism, users, admitted)
    first = await server.answer(client.get_client_first().encode())
    assert first.admitted is None
    client.set_server_first(first.token.decode())
    last = await server.answer(client.get_client_final().encode())
    client.set_server_final(last.token.decode())
    return last


@pytest.mark.parametrize("mechanism", BOTH)
async def test_the_password_gets_in_and_the_server_proves_that_it_knows_it(users: Users, mechanism: Mechanism) -> None:
    answer = await login(users, mechanism, "jane", "secret")
    assert answer.admitted == admitted("jane")
    for name, password in (("jane", "Secret"), ("joe", "secret"), ("jane", "secret ")):
        with pytest.raises(LoginRefused, match="invalid credentials with SASL mechanism"):
            await login(users, mechanism, name, password)


async def test_users_survive_and_passwords_are_not_revealed() -> None:
    documents = Documents()
    before = await opened(documents)
    await before.create("jane", "a very secret word")
    stored = b"".join(documents.kept.values())
    assert b"secret" not in stored
    after = await opened(documents)
    assert after.find("jane") == before.find("jane")
    assert await after.check("jane", "a very secret word")
    assert after.shown("nobody", BOTH[0]) == before.shown("nobody", BOTH[0])
    before.close()
    after.close()


async def test_who_is_not_there_looks_as_if(users: Users) -> None:
    there, absent = users.shown("jane", BOTH[0]), users.shown("joe", BOTH[0])
    assert absent == users.shown("joe", BOTH[0])
    assert absent.salt != users.shown("jo", BOTH[0]).salt
    assert absent.salt != users.shown("joe", BOTH[1]).salt
    assert (len(absent.salt), absent.iterations, len(absent.stored_key)) == (
        len(there.salt),
        there.iterations,
        len(there.stored_key),
    )


async def test_passwords_are_checked_as_they_are_now(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    salted: list[str] = []

    def noting(mechanism: Mechanism, password: str, with_salt: bytes, iterations: int) -> bytes:
        salted.append(password)
        return salt(mechanism, password, with_salt, iterations)

    monkeypatch.setattr(module, "salt", noting)
    assert await users.check("jane", "secret")
    assert await users.check("jane", "secret")
    assert salted == ["secret"]  # the second time it was remembered
    assert not await users.check("jane", "wrong")
    assert not await users.check("joe", "secret")
    assert not await users.check("jane", "x" * 10_000)
    assert salted == ["secret", "wrong", "secret"]  # an unknown name takes as long
    await users.create("jane", "other")
    assert not await users.check("jane", "secret")
    assert await users.check("jane", "other")
    await users.save(dict.fromkeys(("jane", each) for each in BOTH))
    assert not await users.check("jane", "other")
    assert users.names == []


async def test_a_password_that_is_replaced_while_it_is_checked_does_not_get_in(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = threading.Event()

    def late(mechanism: Mechanism, password: str, with_salt: bytes, iterations: int) -> bytes:
        if password == "secret":
            replaced.wait(60)
        return salt(mechanism, password, with_salt, iterations)

    monkeypatch.setattr(module, "salt", late)
    checking = asyncio.create_task(users.check("jane", "secret"))
    await asyncio.sleep(0)
    await users.create("jane", "other")
    replaced.set()
    assert not await checking


async def test_two_passwords_are_checked_at_a_time_off_the_event_loop(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, two, go = threading.Lock(), threading.Event(), threading.Event()
    running: list[str] = []
    most = 0

    def slow(mechanism: Mechanism, password: str, with_salt: bytes, iterations: int) -> bytes:
        nonlocal most
        with lock:
            running.append(password)
            most = max(most, len(running))
            if len(running) > 1:
                two.set()
        go.wait(60)
        with lock:
            running.remove(password)
        return salt(mechanism, password, with_salt, iterations)

    monkeypatch.setattr(module, "salt", slow)
    checks = [asyncio.create_task(users.check("jane", f"guess {number}")) for number in range(6)]
    while not two.is_set():  # the loop has its turns
        await asyncio.sleep(0)
    assert not any(each.done() for each in checks)
    go.set()
    assert await asyncio.gather(*checks) == [False] * 6
    assert most == 2


async def test_a_crowd_gets_a_retriable_error(users: Users) -> None:
    outcomes = await asyncio.gather(
        *(users.check("jane", f"guess {number}") for number in range(600)), return_exceptions=True
    )
    assert sum(isinstance(each, TooManyLogins) for each in outcomes) == 100
    assert not any(each is True for each in outcomes)
    assert await users.check("jane", "secret")


async def test_one_address_has_a_share_of_the_passwords_that_wait(users: Users) -> None:
    """Of IPv6 its network."""
    crowd = [users.check("jane", f"guess {number}", f"2001:db8::{number:x}") for number in range(600)]
    others = [users.check("jane", "secret", host) for host in ("10.0.0.1", "2001:db8:1::1")]
    outcomes = await asyncio.gather(*crowd, *others, return_exceptions=True)
    assert outcomes[-2:] == [True, True]
    assert outcomes.count(False) == module.MOST_WAITING_OF_ONE
    assert await users.check("jane", "wrong", "2001:db8::1") is False


async def test_there_is_an_end_to_users(users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_USERS", 2)
    kept = Credential(b"s" * 16, LEAST_ITERATIONS, b"k", b"k")
    await users.save({("joe", BOTH[0]): kept})
    with pytest.raises(TooManyUsers):
        await users.save({("jim", BOTH[0]): kept})
    await users.save({("joe", BOTH[1]): kept})


FRAGMENTS = st.sampled_from(
    [
        b"n,,",
        b"y,,",
        b"p=tls-unique,,",
        b"n=jane",
        b",r=abc",
        b",r=",
        b",p=AAAA",
        b"c=biws",
        b",m=1",
        b"=2C",
        b"\xff",
        b"a=x,",
    ]
)


@given(first=st.binary() | st.lists(FRAGMENTS).map(b"".join), last=st.binary() | st.lists(FRAGMENTS).map(b"".join))
def test_garbage_is_rejected(first: bytes, last: bytes) -> None:
    async def attempt() -> None:
        users = await opened(Documents())
        try:
            for mechanism in (Scram(BOTH[0], users, admitted), Plain(nobody)):
                with contextlib.suppress(LoginRefused):
                    for token in (first, last, b"", b""):
                        answer = await mechanism.answer(token)
                        assert answer.admitted is None
                    raise AssertionError("nothing was refused")
        finally:
            users.close()

    asyncio.run(attempt())


async def nobody(_name: str, _password: str) -> Admitted:
    raise LoginRefused("no", "nobody")


async def test_a_message_without_end_is_not_read(users: Users) -> None:
    with pytest.raises(LoginRefused, match="that is no message of SCRAM-SHA-256"):
        await Scram(BOTH[0], users, admitted).answer(b"n,,n=" + b"j" * 500_000 + b",r=abc")


async def test_a_user_that_goes_while_logging_in_does_not_get_in(users: Users) -> None:
    client = ScramClient(["SCRAM-SHA-256"], "jane", "secret")
    server = Scram(BOTH[0], users, admitted)
    client.set_server_first((await server.answer(client.get_client_first().encode())).token.decode())
    await users.save(dict.fromkeys(("jane", each) for each in BOTH))
    with pytest.raises(LoginRefused):
        await server.answer(client.get_client_final().encode())
