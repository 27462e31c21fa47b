"""Check that a server answers before the client library connects.

The library reports an untrusted certificate only as a server that does not answer.
"""

import socket
import ssl
import struct
from contextlib import suppress

from headrace.cli.command import CommandFailed, Status
from headrace.server import config
from headrace.text.escaping import shown

_HANDSHAKE_S = _PROBE_S = 1
"""Seconds; a slower server only costs a hint."""
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_NO_TOPICS = struct.pack(">ihhihi", 14, 3, 1, 2, -1, 0)
"""Complete Kafka requests: ApiVersions 0, and Metadata 1 without topics. Importing the codec would be slow."""
_SERVED, _API = struct.Struct(">4shi"), struct.Struct(">hhh")
"""An ApiVersions 0 response: number, error code and API count; then key, minimum and maximum version of each."""
_MOST_ANSWER = 1 << 16
_NUMBER = slice(8, 12)
"""Slice of the request number, which starts its response."""


def connect(servers: str, ca: str | None, where: str, flag: str, patience_s: float) -> None:
    """Check that one of the addresses accepts a connection. Raise CommandFailed.

    `servers` are HOST:PORT, separated by commas. With the PEM file `ca`, connections use TLS. `where` is the source of
    the addresses, if not a flag; `flag` is the flag for others. `patience_s` applies to each.
    """
    trust = None if ca is None else _trust(ca)
    reasons, refused = [], []
    for text in servers.split(","):
        try:
            address = config.Address.parse(text)
        except ValueError as error:
            raise CommandFailed(f"{where or flag}: {error}", Status.USAGE) from None
        try:
            with socket.create_connection((address.host, address.port), timeout=patience_s) as connected:
                if trust is not None:
                    trust.wrap_socket(connected, server_hostname=address.host).close()
                return
        except ssl.SSLCertVerificationError as error:
            refused.append(f"{shown(text)} shows a certificate that is not good by {ca}: {error.verify_message}")
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as error:
            why = (isinstance(error, ssl.SSLError) and error.reason) or "connection closed"
            if "ALERT" in why:
                alert = why.lower().replace("_", " ")
                refused.append(f"{shown(text)} refuses the TLS handshake ({alert}): these commands show no certificate")
                continue
            refused.append(
                f"{shown(text)} takes connections, but none with TLS ({why.lower().replace('_', ' ')}): "
                "name a listener with TLS, or leave --ca and HEADRACE_KAFKA_CA out"
            )
        except TimeoutError:
            reasons.append(f"no answer within {patience_s:g} s")
        except (OSError, UnicodeError) as error:
            reasons.append((getattr(error, "strerror", None) or str(error)).lower())
    if refused:
        raise CommandFailed(refused[0], Status.UNREACHABLE)
    said = f", named by {where}" if where else ""
    raise CommandFailed(
        f"no server responds at {shown(servers)} ({', '.join(reasons)}{said}): start a server with `headrace serve`, "
        f"or name another address with {flag} HOST:PORT",
        Status.UNREACHABLE,
    )


def unanswered(servers: str, ca: str | None, patience_s: float, *, login: bool) -> str:
    """Return the error for servers that accept connections but did not list topics in `patience_s`.

    `login`: a login comes first, which is not tried here.
    """
    named = servers.split(",")
    if any(_is_late(text, ca, login=login) for text in named):
        return (
            f"{shown(servers)} answers as a Kafka broker, but has not said within {patience_s:g} s which topics there "
            "are: it is busy, or what it stores them in is; try again"
        )
    if ca is None and any(_speaks_tls(text) for text in named):
        return f"{shown(servers)} speaks TLS: name the authority of its certificate by --ca FILE or HEADRACE_KAFKA_CA"
    return (
        f"{shown(servers)} accepts connections but does not respond as a Kafka broker: "
        "is it the right port, and does it want a login (--username)? (These commands show no certificate.)"
    )


def lacks(servers: str, ca: str | None, api_key: int) -> bool:
    """Return whether the first server that lists its APIs lacks one; False if none does."""
    for text in servers.split(","):
        with suppress(OSError, ValueError), _link(text, ca) as link:
            answer = _answer(link, _API_VERSIONS)
            number, code, count = _SERVED.unpack_from(answer.ljust(_SERVED.size, b"\xff"))
            served = answer[_SERVED.size : _SERVED.size + _API.size * count]
            if (number, code, len(served)) == (_API_VERSIONS[_NUMBER], 0, _API.size * count):
                return all(key != api_key for key, _, _ in _API.iter_unpack(served))
    return False


def _link(text: str, ca: str | None) -> socket.socket:
    address = config.Address.parse(text)
    link = socket.create_connection((address.host, address.port), timeout=_PROBE_S)
    return link if ca is None else _trust(ca).wrap_socket(link, server_hostname=address.host)


def _is_late(text: str, ca: str | None, *, login: bool) -> bool:
    with suppress(OSError, ValueError), _link(text, ca) as link:
        if _answer(link, _API_VERSIONS)[:4] != _API_VERSIONS[_NUMBER]:
            return False
        if login:
            return True
        with suppress(TimeoutError):
            return _answer(link, _NO_TOPICS)[:4] == _NO_TOPICS[_NUMBER]
        return True
    return False


def _answer(link: socket.socket, request: bytes) -> bytes:
    link.sendall(request)
    with link.makefile("rb") as answer:
        size = int.from_bytes(answer.read(4), "big")
        return answer.read(min(size, _MOST_ANSWER))


def _trust(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        # ssl.SSLError, for a file without certificates, is a subclass of these.
        reason = "there is no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        message = f"cannot read the authority {shown(ca)}, named by --ca, HEADRACE_KAFKA_CA or a profile: {reason}"
        raise CommandFailed(message, Status.USAGE) from None
    # Python 3.13 refuses CAs without a key usage; the client library accepts them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _speaks_tls(text: str) -> bool:
    """The certificate is not checked because no data is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(OSError, ValueError):
        address = config.Address.parse(text)
        with socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_S) as connected:
            context.wrap_socket(connected, server_hostname=address.host).close()
            return True
    return False
