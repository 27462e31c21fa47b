"""One blocking connection to one broker: TLS, login, requests and their answers in order."""

import contextlib
import itertools
import socket
import ssl
import tempfile
from collections import deque
from pathlib import Path
from struct import Struct
from typing import Any, Final

from headrace.kafka.codec import headers
from headrace.kafka.codec.errors import DecodeError
from headrace.kafka.codec.message import Message
from headrace.kafka.codec.messages import (
    RESPONSES,
    ApiVersionsRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from headrace.spark.client.codes import Code
from headrace.spark.client.login import conversation
from headrace.spark.client.options import ClientOptions
from headrace.spark.errors import LoginRefused, ServerUnavailable

_SIZE: Final = Struct(">i")
_MOST_FRAME: Final = 1 << 30
_BUFFER: Final = 4 << 20
_API_VERSIONS: Final = 3
_OLDEST_API_VERSIONS: Final = 0


class Connection:
    """Requests may be sent ahead; answers come in the order of the requests."""

    def __init__(self, host: str, port: int, options: ClientOptions) -> None:
        """Connect, learn what the broker speaks, log in.

        Raises:
            ServerUnavailable: nobody there, or nobody who speaks Kafka's protocol.
            LoginRefused: the broker does not know this user.
        """
        self.place = f"{host}:{port}"
        self._options = options
        self._numbers = itertools.count(1)
        self._asked: deque[tuple[int, int, int]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = self._open(host, port)
        try:
            self._learn_versions()
            if options.mechanism is not None:
                self._log_in(options.mechanism)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    @property
    def idle(self) -> bool:
        """Whether every request has had its answer."""
        return not self._asked

    def ask(self, request: Message, *, highest: int = 99) -> Any:
        """Send a request, in the newest version up to `highest` that both sides speak, and wait for its answer."""
        self.send(request, highest=highest)
        return self.receive()

    def send(self, request: Message, *, highest: int = 99) -> None:
        """Send a request whose answer `receive` will give."""
        version = self._version(type(request), highest)
        number = next(self._numbers)
        head = headers.encode_request_header(request.API_KEY, version, number, self._options.client_id)
        chunks = [head, *request.encode(version)]
        frame = [_SIZE.pack(sum(map(len, chunks))), *chunks]
        try:
            if isinstance(request, ProduceRequest):
                for chunk in frame:
                    self._socket.sendall(chunk)
            else:
                self._socket.sendall(b"".join(frame))
        except OSError as error:
            raise self._gone(error) from error
        self._asked.append((request.API_KEY, version, number))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet.

        Raises:
            ServerUnavailable: the connection ended, or the answer makes no sense.
        """
        api_key, version, number = self._asked.popleft()
        frame = self._frame()
        try:
            answered, position = headers.decode_response_header(frame, 0, api_key, version)
            if answered != number:
                raise ServerUnavailable(f"{self.place} answered request {answered} instead of {number}")
            return RESPONSES[api_key].decode(frame, position, version)
        except DecodeError as error:
            raise ServerUnavailable(f"{self.place} does not speak Kafka's protocol: {error}") from error

    def _open(self, host: str, port: int) -> socket.socket:
        try:
            raw = socket.create_connection((host, port), self._options.timeout_s)
        except OSError as error:
            raise self._gone(error) from error
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
            # A broker that does not know the version says so in version 0 (KIP-511).
            frame, asked = self._frame(), self._asked.popleft()
            _, position = headers.decode_response_header(frame, 0, *asked[:2])
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            if code == Code.UNSUPPORTED_VERSION:
                continue
            try:
                answer: Any = RESPONSES[request.API_KEY].decode(frame, position, version)
            except DecodeError as error:
                raise ServerUnavailable(f"{self.place} does not speak Kafka's protocol: {error}") from error
            self._versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            return
        raise ServerUnavailable(f"{self.place} speaks no version of ApiVersions that is known here")

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
        talk = conversation(mechanism, self._options.username, self._options.password)
        words = next(talk)
        with contextlib.suppress(StopIteration):
            while True:
                answer = self.ask(SaslAuthenticateRequest(auth_bytes=words))
                if answer.error_code:
                    reason = answer.error_message or "no reason given"
                    raise LoginRefused(f"{self.place} refused {self._options.username!r}: {reason}")
                words = talk.send(bytes(answer.auth_bytes))

    def _frame(self) -> bytearray:
        size = _SIZE.unpack(self._exactly(_SIZE.size))[0]
        if not 4 <= size <= _MOST_FRAME:
            raise ServerUnavailable(
                f"{self.place} does not speak Kafka's protocol, or wants TLS (option kafka.security.protocol)"
            )
        return self._exactly(size)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, position = memoryview(data), 0
        while position < size:
            try:
                got = self._socket.recv_into(view[position:])
            except OSError as error:
                raise self._gone(error) from error
            if not got:
                hint = "" if self._versions else " (does it want TLS or a login? see option kafka.security.protocol)"
                raise ServerUnavailable(f"{self.place} closed the connection{hint}")
            position += got
        return data

    def _gone(self, error: OSError) -> ServerUnavailable:
        return ServerUnavailable(f"{self.place} does not answer: {_reason(error)}")


def _tls(options: ClientOptions) -> ssl.SSLContext:
    """Raises ValueError for PEM that is none."""
    context = ssl.create_default_context(cadata=options.authorities)
    context.check_hostname = options.verify_host
    if options.certificate is not None:
        # The ssl module takes a client's certificate from a file only.
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
