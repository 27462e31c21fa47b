"""What other brokers are asked with: kept, and read again when the files change."""

import contextlib
import datetime as dt
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.security.tls.contexts import AlertContext, PeerContext, TlsFiles
from headrace.security.tls.files import GeneratedFiles, create

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def made(tmp_path: Path) -> GeneratedFiles:
    return create(tmp_path / "own", (), "jane", NOW)


def trusts(context: ssl.SSLContext, authority: str) -> bool:
    return ssl.PEM_cert_to_DER_cert(authority) in context.get_ca_certs(binary_form=True)


def test_it_is_created_once_and_again_when_the_files_change(made: GeneratedFiles, tmp_path: Path) -> None:
    towards = PeerContext(TlsFiles(made.server, made.authority, "none"))
    first, authority = towards.current(), made.authority.read_text()
    assert towards.current() is first
    assert trusts(first, authority)
    other = create(tmp_path / "other", (), "jane", NOW)
    other.server.replace(made.server)
    other.authority.replace(made.authority)
    second = towards.current()
    assert towards.current() is second
    assert (trusts(second, authority), trusts(second, made.authority.read_text())) == (False, True)


def test_broken_files_leave_it_as_it_was_with_one_line_in_the_log(made: GeneratedFiles) -> None:
    towards = PeerContext(TlsFiles(made.server, made.authority, "none"))
    first, good = towards.current(), made.server.read_bytes()
    for content in (b"", b"none", None):
        if content is None:
            made.server.unlink()
        else:
            made.server.write_bytes(content)
        with capture_logs() as logged:
            assert [towards.current() for _ in range(3)] == [first] * 3
        assert [line["log_level"] for line in logged] == ["error"]
    made.server.write_bytes(good)
    assert towards.current() is not first


def test_without_files_of_its_own_it_is_made_once(tmp_path: Path) -> None:
    towards = PeerContext(None)
    assert towards.current() is towards.current()
    missing = PeerContext(TlsFiles(tmp_path / "none.pem", None, "none"))
    for _ in range(2):
        with pytest.raises(OSError, match="No such file"):
            missing.current()


def pumped(source: ssl.MemoryBIO, target: ssl.MemoryBIO) -> None:
    target.write(source.read())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_unread_requests_do_not_block_earlier_answers(made: GeneratedFiles, version: ssl.TLSVersion) -> None:
    context = AlertContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    trusting = ssl.create_default_context(cafile=made.authority)
    trusting.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_in, client_in = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(server_in, to_client, server_side=True)
    client = trusting.wrap_bio(client_in, to_server, server_hostname="localhost")
    for _ in range(3):
        for side, out, there in ((client, to_server, server_in), (server, to_client, client_in)):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            pumped(out, there)
    server.write(b"answer")
    client.write(b"the next request")
    pumped(to_server, server_in)
    # The answer has not gone to the socket: it may not be dropped.
    with pytest.raises(ssl.SSLWantReadError):
        server.unwrap()
    pumped(to_client, client_in)
    server.unwrap()
    assert client.read() == b"answer"
