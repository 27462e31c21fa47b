"""One blocking connection to one broker: TLS, login, requests and their answers in order."""

import contextlib
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from headrace.client import blocking
from headrace.client.error_codes import Code
from headrace.client.errors import LoginRefused, ServerUnavailable
from headrace.client.login import conversation, token_conversation
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
    """Requests may be sent ahead; answers come in the order of the requests."""

    def __init__(self, host: str, port: int, options: ClientOptions) -> None:
        """Connect, learn what the broker speaks, log in.

        Raises:
            ServerUnavailable: nobody there, or nobody who speaks Kafka's protocol.
            LoginRefused: the broker does not know this user.
        """
        self.place = f"{host}:{port}"
        self._options = options
        self._versions: dict[int, tuple[int, int]] = {}
        self._link = blocking.Connection(self._open(host, port), options.client_id)
        try:
            self._learn_versions()
            if options.mechanism is not None:
                self._log_in(options.mechanism)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    @property
    def idle(self) -> bool:
        """Whether every request has had its answer."""
        return self._link.idle

    def ask(self, request: Message, *, highest: int = 99) -> Any:
        """Send a request, in the newest version up to `highest` that both sides speak, and wait for its answer."""
        self.send(request, highest=highest)
        return self.receive()

    def send(self, request: Message, *, highest: int = 99) -> None:
        """Send a request whose answer `receive` will give."""
        version = self._version(type(request), highest)
        try:
            self._link.send(request, version)
        except OSError as error:
            raise self._gone(error) from error

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet.

        Raises:
            ServerUnavailable: the connection ended, or the answer makes no sense.
        """
        with self._told():
            return self._link.receive()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong while an answer is awaited, as ServerUnavailable."""
        try:
            yield
        except OSError as error:
            raise self._gone(error) from error
        except blocking.ConnectionEnded as error:
            known = len(self._versions) > 1  # more than what is tried first
            hint = "" if known else " (does it want TLS or a login? see option kafka.security.protocol)"
            raise ServerUnavailable(f"{self.place} closed the connection{hint}") from error
        except blocking.NotKafka as error:
            raise ServerUnavailable(
                f"{self.place} does not speak Kafka's protocol, or wants TLS (option kafka.security.protocol): {error}"
            ) from error
        except DecodeError as error:
            raise ServerUnavailable(f"{self.place} does not speak Kafka's protocol: {error}") from error

    def _open(self, host: str, port: int) -> socket.socket:
        try:
            raw = blocking.connect(host, port, self._options.timeout_s)
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
            # A broker that does not know the version says so in version 0 (KIP-511).
            with self._told():
                _, _, frame, position = self._link.receive_body()
            code = int.from_bytes(frame[position : position + 2], "big", signed=True)
            if code == Code.UNSUPPORTED_VERSION:
                continue
            with self._told():
                answer: Any = RESPONSES[request.API_KEY].decode(frame, position, version)
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
