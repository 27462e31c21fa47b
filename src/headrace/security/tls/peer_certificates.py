"""Who is at the other end of a connection, as far as its certificate tells."""

import asyncio
import importlib

import msgspec
import structlog

from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.access.principal_mapping import Mapping
from headrace.security.tls.contexts import TlsContexts

_log = structlog.get_logger("headrace.security.tls")


class Tls(msgspec.Struct, frozen=True):
    """What a listener with TLS needs: certificates, and names for those of its clients."""

    contexts: TlsContexts
    mapping: Mapping

    def __post_init__(self) -> None:
        """Load what reads certificates: at the start, before anybody waits for it, and only where there is TLS."""
        importlib.import_module("cryptography.x509")


def principal_of(transport: asyncio.BaseTransport, mapping: Mapping) -> Principal | None:
    """The principal that a verified certificate names; ANONYMOUS without one. None: no rule has a name for it."""
    tls = transport.get_extra_info("ssl_object")
    der = None if tls is None else tls.getpeercert(binary_form=True)
    if not der:
        return ANONYMOUS
    from cryptography import x509  # noqa: PLC0415  # loaded with `Tls`

    try:
        distinguished = x509.load_der_x509_certificate(der).subject.rfc4514_string()
    except ValueError as error:
        _log.warning("a client's certificate has no readable name", reason=str(error))
        return None
    name = mapping.name(distinguished)
    return None if name is None else Principal(name or ANONYMOUS.name)
