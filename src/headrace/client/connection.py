"""A blocking connection to one broker with TLS, login and version negotiation.

Logins: SASL PLAIN (RFC 4616), SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628) with a token from a file.
"""

import base64
import contextlib
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

from headrace.client import channel
from headrace.client.errors import Code, LoginRefused, ServerUnavailable
from headrace.client.options import ClientOptions
from headrace.protocol.errors import DecodeError
from headrace.protocol.message import Message
from headrace.protocol.messages import (
    RESPONSES,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

_BUFFER: Final = 4 << 20
_API_VERSIONS: Final = 3
_OLDEST_API_VERSIONS: Final = 0


class Connection:
    """Pipelined requests; responses arrive in order."""

    def __init__(self, host: str, port: int, options: ClientOptions) -> None:
        """Connect, negotiate versions and log in. Raises ServerUnavailable, LoginRefused."""
        self.place = f"{host}:{port}"
        self._options = options
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """Versions of the cluster's features, such as `transaction.version` (KIP-584)."""
        self._link = channel.Channel(self._open(host, port), options.client_id)
        try:
            self._learn_versions()
            if options.mechanism is not None:
                self._log_in(options.mechanism)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    @property
    def idle(self) -> bool:
        """Whether no response is pending."""
        return self._link.idle

    def ask(self, request: Message, *, highest: int = 99) -> Any:
        """Send a request in the newest common version up to `highest`, and return the response."""
        self.send(request, highest=highest)
        return self.receive()

    def send(self, request: Message, *, highest: int = 99) -> None:
        """Send a request; `receive` returns its response."""
        version = self._version(type(request), highest)
        try:
            self._link.send(request, version)
        except OSError as error:
            raise self._gone(error) from error

    def receive(self) -> Any:
        """Return the response to the oldest pending request. Raises ServerUnavailable."""
        with self._told():
            return self._link.receive()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._gone(error) from error
        except channel.ConnectionEnded as error:
            known = len(self._versions) > 1  # the negotiation is complete
            hint = "" if known else " (does it want TLS or a login? see option kafka.security.protocol)"
            raise ServerUnavailable(f"{self.place} closed the connection{hint}") from error
        except channel.NotKafka as error:
            raise ServerUnavailable(
                f"{self.place} does not speak Kafka's protocol, or wants TLS (option kafka.security.protocol): {error}"
            ) from error
        except DecodeError as error:
            raise ServerUnavailable(f"{self.place} does not speak Kafka's protocol: {error}") from error

    def _open(self, host: str, port: int) -> socket.socket:
        try:
            raw = channel.connect(host, port, self._options.timeout_s)
        except OSError as error:
            raise self._gone(error) from error
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        if not self._options.tls:
            return raw
        try:
            return _tls(self._options).wrap_socket(raw, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raw.close()
            raise LoginRefused(f"the certificate of {self.place} is not trusted: {error.verify_message}") from error
        except (OSError, ValueError) as error:
            raw.close()
            raise ServerUnavailable(f"{self.place} did not agree on TLS: {_reason(error)}") from error

    def _learn_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name="headrace-spark", client_software_version="1")
        for version in (_API_VERSIONS, _OLDEST_API_VERSIONS):
            self._versions = {request.API_KEY: (version, version)}
            self.send(request)
            # A broker responds to an unsupported version of ApiVersions in version 0 (KIP-511).
            with self._told():
                _, _, frame, position = self._link.receive_body()
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            if code == Code.UNSUPPORTED_VERSION:
                continue
            with self._told():
                answer: Any = RESPONSES[request.API_KEY].decode(frame, position, version)
            self._versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            self.features = {one.name: one.max_version_level for one in answer.finalized_features}
            return
        raise ServerUnavailable(f"{self.place} speaks no version of ApiVersions that is known here")

    def supports(self, request: type[Message]) -> bool:
        """Return whether the broker has a version of this request that is known here."""
        low, high = self._versions.get(request.API_KEY, (0, -1))
        return max(low, request.VERSIONS[0]) <= min(high, request.VERSIONS[1])

    def _version(self, request: type[Message], highest: int) -> int:
        low, high = self._versions.get(request.API_KEY, (0, -1))
        version = min(high, request.VERSIONS[1], highest)
        if version < max(low, request.VERSIONS[0]):
            raise ServerUnavailable(f"{self.place} does not speak a version of {request.__name__} that is known here")
        return version

    def _log_in(self, mechanism: str) -> None:
        answer = self.ask(SaslHandshakeRequest(mechanism=mechanism), highest=1)
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise LoginRefused(f"{self.place} does not take SASL {mechanism}; it offers: {offered}")
        options = self._options
        if options.token_file is not None:
            who, talk = f"the token in {options.token_file}", token_conversation(options.token_file)
        else:
            who, talk = repr(options.username), conversation(mechanism, options.username, options.password)
        words = next(talk)
        with contextlib.suppress(StopIteration):
            while True:
                answer = self.ask(SaslAuthenticateRequest(auth_bytes=words))
                if answer.error_code:
                    reason = answer.error_message or "no reason given"
                    raise LoginRefused(f"{self.place} refused {who}: {reason}")
                words = talk.send(bytes(answer.auth_bytes))

    def _gone(self, error: OSError) -> ServerUnavailable:
        return ServerUnavailable(f"{self.place} does not answer: {_reason(error)}")


def _tls(options: ClientOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=options.authorities)
    context.check_hostname = options.verify_host
    if options.certificate is not None:
        # The ssl module loads client certificates only from files.
        with tempfile.TemporaryDirectory(prefix="headrace-tls-") as folder:
            path = Path(folder) / "client.pem"
            path.touch(mode=0o600)
            path.write_text(options.certificate, "utf-8")
            context.load_cert_chain(path, password=options.key_password or "")
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


_LEAST_ITERATIONS, _MOST_ITERATIONS = 4_096, 1_000_000
"""With fewer iterations (RFC 7677, section 4) the proof reveals weak passwords; more would block the client."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)
"""RFC 6750, section 2.1."""


def conversation(mechanism: str, username: str, password: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of a login; the generator receives the server's challenges.

    Raises LoginRefused if the server cannot prove that it knows the password (SCRAM).
    """
    if mechanism == "PLAIN":
        yield f"\0{username}\0{password}".encode()
    else:
        yield from _scram("sha256" if mechanism.endswith("256") else "sha512", username, password)


def token_conversation(path: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of OAUTHBEARER with a file's token. Raises LoginRefused, without the token."""
    try:
        token = Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LoginRefused(f"the token in {path} cannot be read: {reason}") from None
    if _TOKEN.fullmatch(token) is None:
        raise LoginRefused(f"{path} holds no token: expected one, and nothing else")
    if (yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
        # Section 3.2.3: the client acknowledges the error before the server ends the exchange.
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
