"""API keys as files."""

import hashlib
from pathlib import Path

import structlog
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from headrace.oci.signatures import ApiKey

_log = structlog.get_logger("headrace.oci")


class KeyDirectory:
    """Public keys in files `<tenancy>/<user>/<fingerprint>.pem`, with dashes for the fingerprint's colons.

    A file is read on first use and after a change. Without its file a key is invalid.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, tuple[tuple[int, int, int], RSAPublicKey | None]] = {}

    def path(self, key: ApiKey) -> Path:
        """Return a key's path."""
        return self._directory / key.tenancy / key.user / (key.fingerprint.replace(":", "-") + ".pem")

    def install(self, key: ApiKey, public: RSAPublicKey) -> Path:
        """Write a public key and return its path. Raises OSError."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return path

    def verify(self, key: ApiKey, signature: bytes, signed: bytes) -> bool:
        """Return whether a known key made this signature (RSA with SHA-256, PKCS #1 v1.5)."""
        public = self._find(key)
        if public is None:
            return False
        try:
            public.verify(signature, signed, PKCS1v15(), SHA256())
        except InvalidSignature:
            return False
        return True

    def _find(self, key: ApiKey) -> RSAPublicKey | None:
        path = self.path(key)
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            known = self._read.get(path)
            if known is None or known[0] != stamp:
                known = self._read[path] = (stamp, _load(path))
        except OSError as error:
            self._read.pop(path, None)
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                _log.warning("a public key cannot be read", file=str(path), reason=error.strerror)
            return None
        return known[1]


def fingerprint(public: RSAPublicKey) -> str:
    """Return the OCI fingerprint: MD5 of the DER form as 16 hex pairs with colons."""
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.md5(der, usedforsecurity=False).digest().hex(":")


def _load(path: Path) -> RSAPublicKey | None:
    try:
        loaded = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        loaded = None
    if not isinstance(loaded, RSAPublicKey):
        _log.warning("a key file is not an RSA public key in PEM format", file=str(path))
        return None
    return loaded
