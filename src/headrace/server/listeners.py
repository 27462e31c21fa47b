"""Bind the server's listeners and check their security."""

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from headrace.broker.config.settings import LISTENER_PREFIX, BrokerSettings, passes_over_client_auth, settings_at
from headrace.broker.virtual_clusters import ClusterListener
from headrace.kafka.server.listener import KafkaListener
from headrace.metrics.counters import ConnectedClient
from headrace.oci.settings import OciSettings, kafka_login_required, missing_credentials
from headrace.security.access.listeners import Exposed, Listener, Protocol, refusal
from headrace.security.access.principal import Mapping
from headrace.security.tls.contexts import PeerContext, Tls, TlsContexts, TlsFiles
from headrace.server.config import ServerOptions, SettingsError, StartError
from headrace.text.addresses import Address, is_everywhere


class AddressTaken(StartError):
    """Another process uses the port."""


def bind_socket(address: Address, where: str, stack: contextlib.AsyncExitStack) -> socket.socket:
    """Bind a socket, before anything else is started: a busy port is the most common mistake.

    `where` is the option that changes the address. `stack` closes the socket. Raises AddressTaken, StartError.
    """
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        stack.callback(bound.close)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        # Two sockets can bind one port until one of them listens.
        bound.listen(1024)
        bound.setblocking(False)
    except OSError as error:
        kind = AddressTaken if error.errno == errno.EADDRINUSE else StartError
        raise kind(
            f"cannot listen on {address}: {error.strerror}; choose another address with {where} (port 0: a free one)"
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """Return `HOST:PORT` of a bound socket."""
    host, port = bound.getsockname()[:2]
    return str(Address(host, port))


_log = structlog.get_logger("headrace.server")


class BoundListener(msgspec.Struct, frozen=True):
    """A Kafka listener with its socket."""

    listener: Listener
    socket: socket.socket
    settings: BrokerSettings
    """Settings of this listener."""
    tls: Tls | None
    """TLS of its connections; None: plaintext."""

    @property
    def host(self) -> str:
        """The bound address."""
        host: str = self.socket.getsockname()[0]
        return host

    @property
    def certified(self) -> bool:
        """Whether clients authenticate with certificates, which excludes SASL."""
        return self.listener.protocol is Protocol.SSL and self.settings.ssl_client_auth != "none"

    @property
    def told(self) -> tuple[str, int]:
        """Advertised host and port."""
        told = self.listener.advertised or Address(self.listener.address.host, self.socket.getsockname()[1])
        return told.host, told.port


class Listening(msgspec.Struct, frozen=True):
    """All bound sockets, and TLS."""

    kafka: tuple[BoundListener, ...]
    http: socket.socket
    https: bool
    tls: Tls | None
    """TLS of HTTPS and of requests to other brokers; None: no listener has TLS."""

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of listeners by name, in the configured order."""
        return {each.listener.name: address_of(each.socket) for each in self.kafka}

    @property
    def url(self) -> str:
        """URL of the HTTP listener."""
        return f"{'https' if self.https else 'http'}://{address_of(self.http)}"

    @property
    def told(self) -> dict[str, tuple[str, int]]:
        """Advertised host and port of each Kafka listener."""
        return {each.listener.name: each.told for each in self.kafka}

    @property
    def towards_peers(self) -> Callable[[], ssl.SSLContext]:
        """Returns the TLS context for requests to other brokers; keep the function, which caches it."""
        assert self.tls is not None or not self.https
        return PeerContext(None if self.tls is None else self.tls.contexts.files).current

    def http_url(self, options: ServerOptions) -> str:
        """Return the HTTP listener's URL for other brokers."""
        host = options.http.host
        if is_everywhere(host):
            host = reached_host("http", host if options.advertise is None else options.advertise.host)
        return f"{'https' if self.https else 'http'}://{Address(host, self.http.getsockname()[1])}"


def reached_host(listener: str, host: str) -> str:
    """Return the host for other machines: of a wildcard address, the machine's name, a guess."""
    if not is_everywhere(host):
        return host
    name = socket.gethostname()
    _log.warning(
        "a listener is bound to all addresses without an advertised one: the server advertises the machine's "
        "name; set the address with --advertise HOST:PORT, or with advertised.listeners",
        listener=listener,
        told=name,
    )
    return name


def open_listeners(
    options: ServerOptions, settings: BrokerSettings, oci: OciSettings, stack: contextlib.AsyncExitStack
) -> Listening:
    """Bind every socket. Raises StartError; SettingsError for an insecure listener or a missing certificate."""
    where = "listeners" if settings.listeners else "--kafka HOST:PORT"
    sockets = [(each, bind_socket(each.address, where, stack)) for each in options.listeners]
    http = bind_socket(options.http, "--http HOST:PORT", stack)
    https = options.http_tls
    certificates = _Certificates()
    kafka = tuple(_bound(each, sock, settings, certificates) for each, sock in sockets)
    tls = certificates.needed_by("--http https://", settings) if https else certificates.first
    plain = [each.host for each in kafka if not (each.listener.protocol.login or each.certified)]
    refused = missing_credentials(oci, plain)
    if refused is not None:
        raise SettingsError(refused)
    _check_authentication(settings, oci)
    exposed = [_http(http, settings, oci, https=https), *(_kafka(each, oci) for each in kafka)]
    refused = refusal(exposed, insecure=settings.headrace_insecure)
    if refused is not None:
        raise SettingsError(refused)
    return Listening(kafka, http, https, tls)


def _check_authentication(settings: BrokerSettings, oci: OciSettings) -> None:
    if settings.authorizer_class_name and not oci.closed and oci.auth != "verify":
        raise SettingsError(
            f"authorizer.class.name needs authenticated clients, and oci.auth={oci.auth} does not check signatures: "
            "add --set oci.auth=verify --set oci.auth.keys=DIR, or disable the OCI API with --set oci.enable=false"
        )
    if settings.authorizer_class_name and settings.headrace_testing_reset:
        raise SettingsError(
            "headrace.testing.reset=true lets every client delete everything, whatever the ACLs: "
            "leave it out, or authorizer.class.name"
        )
    if oci.closed:
        _log.info("the OCI API refuses every request", reason=oci.closed)
        return
    if oci.auth == "verify" and not Path(oci.auth_keys).is_dir():
        raise SettingsError(
            f"oci.auth.keys={oci.auth_keys} is no directory; make one with headrace oci-config --keys DIR"
        )
    if oci.auth == "verify" and oci.auth_tokens and not Path(oci.auth_tokens).is_file():
        raise SettingsError(f"oci.auth.tokens={oci.auth_tokens} is no file; docs/settings.md says what belongs into it")


def _bound(
    listener: Listener, sock: socket.socket, settings: BrokerSettings, certificates: "_Certificates"
) -> BoundListener:
    own = settings_at(listener, settings)
    if passes_over_client_auth(listener, settings):
        _log.warning(
            "ssl.client.auth is not for listeners with SASL_SSL: "
            f"say {LISTENER_PREFIX}{listener.name.lower()}.ssl.client.auth",
            listener=listener.name,
        )
    tls = certificates.needed_by(listener.name, own) if listener.protocol.encrypted else None
    return BoundListener(listener, sock, own, tls)


class _Certificates:
    """Listeners with the same files share a certificate."""

    def __init__(self) -> None:
        self._made: dict[tuple[TlsFiles, str], Tls] = {}

    @property
    def first(self) -> Tls | None:
        """TLS of the first listener that has it."""
        return next(iter(self._made.values()), None)

    def needed_by(self, listener: str, settings: BrokerSettings) -> Tls:
        """Return a listener's TLS. Raises StartError, and SettingsError without a certificate."""
        if not settings.ssl_keystore_location:
            raise SettingsError(
                f"{listener} needs a certificate: headrace tls create DIR makes one; "
                "add --set ssl.keystore.location=DIR/server.pem"
            )
        if settings.ssl_client_auth != "none" and not settings.ssl_truststore_location:
            raise SettingsError(
                f"ssl.client.auth={settings.ssl_client_auth} needs the authorities whose certificates clients may "
                f"have at {listener}: add --set ssl.truststore.location=FILE"
            )
        files = TlsFiles(
            Path(settings.ssl_keystore_location),
            Path(settings.ssl_truststore_location) if settings.ssl_truststore_location else None,
            settings.ssl_client_auth,
        )
        rules = settings.ssl_principal_mapping_rules
        if (files, rules) not in self._made:
            try:
                self._made[files, rules] = Tls(TlsContexts(files), Mapping(rules))
            except ValueError as error:
                raise StartError(str(error)) from None
        return self._made[files, rules]


def _http(bound: socket.socket, settings: BrokerSettings, oci: OciSettings, *, https: bool) -> Exposed:
    host = bound.getsockname()[0]
    # The other pages and APIs of this listener require a login from other machines.
    login = oci.auth == "verify" or bool(oci.closed) or (https and settings.ssl_client_auth == "required")
    remedy = "" if login else "verify signatures with --set oci.auth=verify --set oci.auth.keys=DIR and "
    return Exposed(
        where=f"--http {host}",
        host=host,
        encrypted=https,
        login=login,
        why=f"oci.auth={oci.auth} accepts every client",
        remedy=f"{remedy}encrypt with --http https://HOST:PORT",
    )


def _kafka(bound: BoundListener, oci: OciSettings) -> Exposed:
    listener, host, settings = bound.listener, bound.host, bound.settings
    protocol = listener.protocol
    certified = protocol.encrypted and settings.ssl_client_auth == "required"
    signed = not bound.certified and oci.auth == "verify" and kafka_login_required(oci, host)
    return Exposed(
        where=f"listeners={listener.name}://{listener.address}" if settings.listeners else f"--kafka {host}",
        host=host,
        encrypted=protocol.encrypted,
        login=protocol.login or certified or signed,
        why="its clients need no password",
        remedy="have them log in and encrypt with --set listeners=SASL_SSL://HOST:PORT",
    )


class KafkaListeners(ClusterListener):
    """All Kafka listeners."""

    def __init__(self, listeners: Iterable[KafkaListener]) -> None:
        self.each = tuple(listeners)

    async def start(self, bound: Iterable[BoundListener], stack: contextlib.AsyncExitStack) -> None:
        """Accept connections until `stack` is closed."""
        for listener, one in zip(self.each, bound, strict=True):
            await listener.start(one.socket)
            stack.push_async_callback(listener.stop)

    @property
    def connections(self) -> dict[str, Callable[[], int]]:
        """Return functions that count connections, by listener."""
        return {each.name: lambda each=each: len(each.connections) for each in self.each}  # type: ignore[misc]

    def clients(self) -> dict[ConnectedClient, tuple[int, int]]:
        """Return connections and requests so far, by client."""
        found: dict[ConnectedClient, tuple[int, int]] = {}
        for listener in self.each:
            for client, (connections, requests) in listener.clients().items():
                before = found.get(client, (0, 0))
                found[client] = before[0] + connections, before[1] + requests
        return found

    def cluster_removed(self, name: str) -> None:
        """Close the connections to a removed virtual cluster."""
        for listener in self.each:
            listener.close_cluster(name)
