"""A throw-away API key: in memory, as a configuration file of OCI clients, and as a key that a server knows."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Self

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from headrace.oci.authentication import file_name

TENANCY = "ocid1.tenancy.oc1..headracetests"
USER = "ocid1.user.oc1..headracetests"
REGION = "us-ashburn-1"


class ApiKey(msgspec.Struct, frozen=True):
    """A private key and whose it is."""

    private: str
    """PEM."""
    public: bytes
    """PEM."""
    fingerprint: str
    """Sixteen pairs of hexadecimal digits, the MD5 of the public key."""
    tenancy: str = TENANCY
    user: str = USER

    @classmethod
    def make(cls) -> Self:
        """A new one, in about a tenth of a second."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
        public = key.public_key()
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fingerprint = hashlib.md5(der, usedforsecurity=False).hexdigest()
        pairs = ":".join(fingerprint[at : at + 2] for at in range(0, 32, 2))
        return cls(private, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), pairs)

    @property
    def configuration(self) -> dict[str, Any]:
        """What clients of the `oci` package are made with."""
        return {
            "tenancy": self.tenancy,
            "user": self.user,
            "fingerprint": self.fingerprint,
            "key_content": self.private,
            "region": REGION,
        }

    def write(self, folder: Path) -> Path:
        """Write `config` and the key beside it, as every OCI SDK reads them; the path of `config`."""
        folder.mkdir(parents=True, exist_ok=True)
        private = folder / "key.pem"
        private.touch(mode=0o600)
        private.write_text(self.private)
        config = folder / "config"
        config.touch(mode=0o600)
        config.write_text(
            f"[DEFAULT]\ntenancy={self.tenancy}\nuser={self.user}\nfingerprint={self.fingerprint}\n"
            f"key_file={private}\nregion={REGION}\n"
        )
        return config

    def allow(self, directory: Path) -> None:
        """Put the public key into the directory that a server with oci.auth=verify is given as oci.auth.keys."""
        folder = directory / self.tenancy / self.user
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file_name(self.fingerprint)).write_bytes(self.public)


@cache
def throw_away_key() -> ApiKey:
    """One that is made once per process."""
    return ApiKey.make()
