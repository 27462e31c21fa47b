"""Whether anybody answers at the address of a server, and what is in the way, before the client library is asked.

It tells of a certificate that it does not believe only as a server that does not answer.
"""

import socket
import ssl
from contextlib import suppress

from headrace import settings
from headrace.cli.commands import CommandFailed, Status
from headrace.harmless import shown

_HANDSHAKE_S = 1
"""For a hint only: a server that takes longer is told of without it."""


def connect(servers: str, ca: str | None, where: str, patience_s: float) -> None:
    """Try whether one of the addresses takes a connection, with TLS where an authority is named.

    Args:
        servers: HOST:PORT, or several with commas between.
        ca: PEM file with the authority of their certificates; None: no TLS.
        where: who named the addresses, where it was no flag.
        patience_s: how long each may take.

    Raises:
        CommandFailed: none does, or the file is none with certificates.
    """
    trust = None if ca is None else _trust(ca)
    reasons, refused = [], []
    for text in servers.split(","):
        try:
            address = settings.Address.parse(text)
        except ValueError as error:
            raise CommandFailed(f"{where or '--bootstrap'}: {error}", Status.USAGE) from None
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
        f"nobody answers at {shown(servers)} ({', '.join(reasons)}{said}): start a server with `headrace serve`, "
        "or name another address with --bootstrap HOST:PORT",
        Status.UNREACHABLE,
    )


def unanswered(servers: str, ca: str | None) -> str:
    """What to say of servers that take connections and do not answer Kafka's requests."""
    if ca is None and any(_speaks_tls(text) for text in servers.split(",")):
        return f"{shown(servers)} speaks TLS: name the authority of its certificate by --ca FILE or HEADRACE_KAFKA_CA"
    return (
        f"{shown(servers)} takes connections but does not answer as a Kafka broker: "
        "is it the right port, and does it want a login (--username)? (These commands show no certificate.)"
    )


def _trust(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        # An ssl.SSLError, where there are no certificates in the file, is one of these, too.
        reason = "there is no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
        message = f"cannot read the authority {shown(ca)}, named by --ca, HEADRACE_KAFKA_CA or a profile: {reason}"
        raise CommandFailed(message, Status.USAGE) from None
    # Python 3.13 began to refuse authorities without a key usage; the client library, which comes next, does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _speaks_tls(text: str) -> bool:
    """Whether a handshake is answered; whose certificate it is does not matter, as nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with suppress(OSError, ValueError):
        address = settings.Address.parse(text)
        with socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_S) as connected:
            context.wrap_socket(connected, server_hostname=address.host).close()
            return True
    return False
