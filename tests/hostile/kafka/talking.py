"""Valid and invalid logins: frames changed, cut, duplicated, out of order, or of another kind."""

import contextlib
import re
import socket
from collections.abc import Callable
from random import Random
from typing import Self

import msgspec
from scramp import ScramClient, ScramException

from headrace.client.channel import ConnectionEnded
from headrace.kafka.server.registry import APIS
from headrace.protocol.errors import EncodeError
from headrace.protocol.messages import MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tests.harness.mutation import mutated_by
from tests.harness.raw import RawClient
from tests.hostile.kafka.corpus import SEEDS, encoded

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PIECES = (
    b"\0", b"\x01", b",", b"=", b"n,,", b"y,,", b"p=tls-unique,,", b"n=admin", b"n=jane", b"a=admin", b"m=1", b"c=biws",
    b",r=", b",p=", b"=2C", b"=2", b"\xff", b"\xed\xa0\x80", b"i=1", b"auth=Bearer ", b"eyJhbGciOiJub25lIn0.e30.",
    b"x" * 5_000,
)  # fmt: skip
"""Of the mechanisms' messages."""
_LENGTHS = (0, -1, 1, 1 << 31 - 1, -(1 << 31), 512 << 10, (512 << 10) + 1, 100 << 20, 2, 4)
_SERVER_FIRST = re.compile(rb"r=[!-+\--~]+,s=[A-Za-z0-9+/=]+,i=[0-9]+")
_LARGE = 300_000


Token = Callable[[bytes], bytes]
"""Makes one of the answer to what was sent before."""
Frame = Callable[[bytes], bytes]
"""The same with its length, in a request or not."""


class Guest(msgspec.Struct, frozen=True):
    """A user name with credentials, valid or not."""

    name: str
    password: str
    token: str

    def tokens(self, mechanism: str) -> list[Token]:
        """What they say by a mechanism, each token made of the answer to the one before it."""
        if mechanism == "PLAIN":
            return [lambda _: f"\0{self.name}\0{self.password}".encode()]
        if mechanism == "OAUTHBEARER":
            return [lambda _: f"n,,\x01auth=Bearer {self.token}\x01\x01".encode(), lambda _: b"\x01"]
        client = ScramClient([mechanism], self.name, self.password)
        first = str(client.get_client_first()).encode()
        return [lambda _: first, lambda heard: _final(client, heard)]


def _final(client: ScramClient, heard: bytes) -> bytes:
    """SCRAM's last message; one that cannot be right where the server has not said what it takes, or it was said."""
    found = _SERVER_FIRST.search(heard)
    try:
        client.set_server_first(found[0].decode() if found is not None else "r=x,s=eHg=,i=4096")
        return str(client.get_client_final()).encode()
    except ScramException:
        return b"c=biws,r=x,p=" + b"A" * 43 + b"="


def frames(
    guest: Guest, mechanism: str, *, bare: bool, version: int = 2, change: Callable[[bytes], bytes] = bytes
) -> list[Frame]:
    """A login: the handshake and the tokens after it, changed, in requests or bare."""
    begun = encoded(SaslHandshakeRequest(mechanism=mechanism), 0 if bare else 1)

    def framed(token: bytes) -> bytes:
        if bare:
            return len(token).to_bytes(4) + token
        return encoded(SaslAuthenticateRequest(auth_bytes=token), version)

    def frame(token: Token) -> Frame:
        return lambda heard: framed(change(token(heard)))

    return [lambda _: begun, *map(frame, guest.tokens(mechanism))]


PROBE = encoded(MetadataRequest(topics=None), 12)
"""Asks for all topics that there are."""


class Talk:
    """One connection. Every wait for the server ends after a minute, with TimeoutError."""

    def __init__(self, address: str) -> None:
        self.heard = bytearray()
        self.ended = False
        self._blind = False
        self._wire = RawClient(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def say(self, data: bytes, *, whole: bool = True) -> bytes:
        """Send bytes, and return the response, or nothing if the connection ends.

        Frames after one that is not `whole` have no expected response: the server's interpretation is unknown.
        """
        self._blind = self._blind or not whole
        try:
            self._wire.send_bytes(data)
            answer = b"" if self._blind or self.ended else self._wire.receive_frame()
        except (ConnectionEnded, ConnectionError):
            self.ended = True
            return b""
        self.heard += answer
        return answer

    def end(self) -> bytes:
        """Say no more, and hear all until the server ends the connection; everything that was heard."""
        with contextlib.suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while more := self._wire.socket.recv(1 << 16):
                self.heard += more
        return bytes(self.heard)


def logged_in(address: str, guest: Guest, mechanism: str, *, bare: bool) -> bytes:
    """Return all responses to a client that logs in correctly and asks for all topics."""
    with Talk(address) as talk:
        answer = b""
        made = frames(guest, mechanism, bare=bare)
        # OAUTHBEARER has a second message for those alone who are refused.
        for frame in made[:2] if mechanism == "OAUTHBEARER" else made:
            answer = talk.say(frame(answer))
        talk.say(PROBE)
        return talk.end()


def astray(address: str, guest: Guest, chance: Random) -> bytes:
    """Return all responses to a client whose login has one or several faults, and that then asks for all topics."""

    def change(token: bytes) -> bytes:
        return mutated_by(chance, token, _PIECES) if chance.random() < changing else token

    changing = chance.choice((0.0, 0.5, 1.0))
    bare, version = chance.random() < 0.3, chance.randint(0, 2)
    made = frames(guest, chance.choice(MECHANISMS), bare=bare, version=version, change=change)
    for _ in range(chance.choice((0, 0, 1, 2))):
        _rearrange(made, guest, chance)
    ahead, spoil, at = chance.random() < 0.2, chance.choice(_SPOIL), chance.randrange(3)
    with Talk(address) as talk:
        answer = b""
        for number, frame in enumerate(made):
            data, whole = frame(answer), not ahead
            if number == at and spoil is not None:
                data, whole = spoil(data, chance), False
            answer = talk.say(data, whole=whole)
        talk.say(PROBE)
        return talk.end()


def _rearrange(made: list[Frame], guest: Guest, chance: Random) -> None:
    """Leave one out, say one twice, change two, or put another request between them."""
    at = chance.randrange(len(made)) if made else 0
    match chance.choice(("out", "twice", "change", "between", "between", "begin")):
        case "out" if made:
            del made[at]
        case "twice" if made:
            made.insert(at, made[at])
        case "change" if len(made) > 1:
            made[at - 1], made[at] = made[at], made[at - 1]
        case "begin":
            made[at:at] = frames(guest, chance.choice(MECHANISMS), bare=chance.random() < 0.5)[: chance.randint(1, 2)]
        case _:
            made.insert(at, _request(chance))


def _request(chance: Random) -> Frame:
    """A request of any API, in a version that it has."""
    api = APIS[chance.choice(sorted(SEEDS.keys() & APIS.keys()))]
    try:
        data = encoded(SEEDS[api.key](), chance.randint(api.oldest, api.newest))
    except EncodeError:
        data = encoded(SEEDS[api.key](), api.newest)
    return lambda _: data


def _length(data: bytes, chance: Random) -> bytes:
    return (chance.choice(_LENGTHS) & 0xFFFFFFFF).to_bytes(4) + data[4:]


def _cut(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _large(data: bytes, chance: Random) -> bytes:
    more = chance.choice(_PIECES)
    changed = data[4:] + more * (_LARGE // len(more))
    return len(changed).to_bytes(4) + changed


_SPOIL: tuple[Callable[[bytes, Random], bytes] | None, ...] = (
    None,
    None,
    None,
    _length,
    _cut,
    _large,
    lambda data, chance: mutated_by(chance, data),
)
"""Changes to one of the frames, after which the server's interpretation is unknown."""
