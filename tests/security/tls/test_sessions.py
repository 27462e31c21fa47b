"""Sessions that clients would resume: without network, so that the date may be another one."""

import datetime as dt
import ssl
import time
from pathlib import Path

import pytest

from headrace.security.tls import contexts as tls_contexts
from headrace.security.tls.contexts import TlsContexts, TlsFiles
from headrace.security.tls.files import GeneratedFiles, create

VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
NOW = dt.datetime.now(dt.UTC)
AFTER_ITS_END_S = 400 * 86_400


@pytest.fixture
def made(tmp_path: Path) -> GeneratedFiles:
    return create(tmp_path / "own", (), "jane", NOW)


@pytest.fixture
def contexts(made: GeneratedFiles) -> TlsContexts:
    return TlsContexts(TlsFiles(made.server, made.authority, "required"))


def client_of(made: GeneratedFiles, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.authority)
    context.load_cert_chain(made.client)
    context.minimum_version = context.maximum_version = version
    return context


def shake(
    contexts: TlsContexts, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The client's side and the server's of a connection whose handshake is through. Raises ssl.SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = contexts.current().wrap_bio(there, back, server_side=True)
    theirs = client.wrap_bio(back, there, server_hostname="localhost", session=session)
    left = [theirs, ours]
    while left:
        side = left.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            left.append(side)
    with pytest.raises(ssl.SSLWantReadError):
        theirs.read(1)  # what TLS 1.3 says behind its handshake
    return theirs, ours


@VERSIONS
def test_no_ticket_is_given(made: GeneratedFiles, contexts: TlsContexts, version: ssl.TLSVersion) -> None:
    theirs, _ = shake(contexts, client_of(made, version))
    assert theirs.session is not None
    assert not theirs.session.has_ticket


@VERSIONS
def test_a_session_outlives_no_certificate(
    made: GeneratedFiles, contexts: TlsContexts, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(made, version)
    # OpenSSL forgets a session when its connection goes without a goodbye: the server's sides are kept.
    theirs, first = shake(contexts, client)
    _, ours = shake(contexts, client, theirs.session)
    assert first.getpeercert() == ours.getpeercert()
    resumed, late = ours.session_reused, time.time() + AFTER_ITS_END_S
    monkeypatch.setattr(tls_contexts, "time", lambda: late)
    if resumed:
        with pytest.raises(ssl.SSLError, match="expired"):
            shake(contexts, client, theirs.session)


@VERSIONS
def test_a_session_outlives_no_authority(
    made: GeneratedFiles, contexts: TlsContexts, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    client = client_of(made, version)
    theirs, first = shake(contexts, client)
    other = create(tmp_path / "other", (), "jane", NOW)
    made.authority.write_bytes(other.authority.read_bytes())
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake(contexts, client, theirs.session)
    assert first.getpeercert()
