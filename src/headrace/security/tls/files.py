"""Create an authority, and certificates for a server and a client, as PEM files."""

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650
_DAYS = 397
"""Maximum for server certificates in browsers and Apple's systems."""
_EARLIER = dt.timedelta(minutes=5)
"""Tolerance for client clocks."""


class GeneratedFiles(msgspec.Struct, frozen=True):
    """The files that were written."""

    authority: Path
    authority_key: Path
    server: Path
    client: Path


class _Issuer(msgspec.Struct, frozen=True):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def create(directory: Path, hosts: Sequence[str], client: str, now: dt.datetime) -> GeneratedFiles:
    """Write `ca.pem`, `ca-key.pem`, `server.pem` and `client.pem` (key and chain), readable for the owner only.

    `hosts` are in addition to loopback, and `client` is a common name. `now` needs a time zone.

    Raises:
        FileExistsError: one of the files exists.
        OSError: a file cannot be written.
        ValueError: a host is neither a name nor an address.
    """
    made = GeneratedFiles(*(directory / name for name in ("ca.pem", "ca-key.pem", "server.pem", "client.pem")))
    names = [_general(host) for host in dict.fromkeys((*LOOPBACK, *hosts))]
    for path in (made.authority, made.authority_key, made.server, made.client):
        if path.exists():
            raise FileExistsError(17, "it exists already", str(path))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    issuer = _authority(now)
    write_private(made.authority, _pem(issuer.certificate))
    write_private(made.authority_key, _key_pem(issuer.key))
    # A server is a client of other brokers, which may require its certificate.
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    server = _issue(issuer, (hosts or LOOPBACK)[0], uses, now, names)
    write_private(made.server, server)
    write_private(made.client, _issue(issuer, client, [ExtendedKeyUsageOID.CLIENT_AUTH], now))
    return made


def _authority(now: dt.datetime) -> _Issuer:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Headrace authority")
    certificate = (
        _builder(name, name, key.public_key(), now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return _Issuer(certificate, key)


def _issue(
    issuer: _Issuer,
    common_name: str,
    uses: Sequence[x509.ObjectIdentifier],
    now: dt.datetime,
    names: Sequence[x509.GeneralName] = (),
) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(common_name), issuer.certificate.subject, key.public_key(), now, _DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _key_pem(key) + _pem(builder.sign(issuer.key, SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not host.isascii() or not host or any(letter in host for letter in " :/,"):
            raise ValueError(f"expected a host name or an address, found {host!r}") from None
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read at any time. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
