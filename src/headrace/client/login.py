"""What a client says to log in: SASL PLAIN (RFC 4616), SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628).

Only a token is read, from its file.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Final

from headrace.client.errors import LoginRefused

_LEAST_ITERATIONS, _MOST_ITERATIONS = 4_096, 1_000_000
"""A server that asks for fewer (RFC 7677, section 4) wants a proof from which the password is soon guessed; one that
asks for more wants our time."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""RFC 6750, section 2.1."""


def conversation(mechanism: str, username: str, password: str) -> Generator[bytes, bytes, None]:
    """Yields what to send; is sent what the server answered. It ends when the server needs no more.

    Raises:
        LoginRefused: the server cannot prove that it knows the password (SCRAM).
    """
    if mechanism == "PLAIN":
        yield f"\0{username}\0{password}".encode()
    else:
        yield from _scram("sha256" if mechanism.endswith("256") else "sha512", username, password)


def token_conversation(path: str) -> Generator[bytes, bytes, None]:
    """The same for OAUTHBEARER, with the token that is in a file now.

    Raises:
        LoginRefused: there is none. Nothing of what is in the file is told.
    """
    try:
        token = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LoginRefused(f"the token in {path} cannot be read: {reason}") from None
    if _TOKEN.fullmatch(token) is None:
        raise LoginRefused(f"{path} holds no token: expected one, and nothing else")
    if (yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
        # Section 3.2.3: a server that says why waits to hear that it was understood, and then refuses.
        yield b"\x01"


def _scram(digest: str, username: str, password: str) -> Generator[bytes, bytes, None]:
    nonce = secrets.token_hex(16)
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    said = yield f"n,,{first}".encode()
    try:
        answer = said.decode()
        told = dict(part.split("=", 1) for part in answer.split(","))
        salt, iterations, joint = base64.b64decode(told["s"]), int(told["i"]), told["r"]
    except (KeyError, ValueError):
        raise LoginRefused(f"the server answered SCRAM with {said[:80]!r}") from None
    if not joint.startswith(nonce):
        raise LoginRefused("the server's SCRAM challenge does not fit what was asked")
    if not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
        raise LoginRefused(
            f"the server asks for {iterations} iterations by SCRAM: {_LEAST_ITERATIONS} to {_MOST_ITERATIONS} are given"
        )
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    final = f"c=biws,r={joint}"
    signed = f"{first},{answer},{final}".encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    verdict = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if verdict != b"v=" + base64.b64encode(expected):
        raise LoginRefused("the server does not know the password it asked for (SCRAM signature)")
