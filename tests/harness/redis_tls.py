"""Configuration of Redis servers and Sentinels with TLS and a required login, and of their clients.

They demand a certificate of the same authority, as Redis does by default, so brokers present one.
"""

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.security.tls.files import create

PASSWORD: Final = "of-the-servers"
"""Of `headrace` at the servers."""
SENTINEL_PASSWORD: Final = "of-the-sentinels"
"""Of `headrace` at the Sentinels."""
_ADMIN, _ADMIN_PASSWORD = "admin", "of-the-admin"
_GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"


def rules_in(guide: str) -> str:
    """The rights of the user `headrace` in a page's `ACL SETUSER`, after the password."""
    found = re.search(r"^ACL SETUSER headrace on '>PASSWORD' (.*)$", (_GUIDES / guide).read_text(), re.MULTILINE)
    assert found is not None, f"no user in {guide}"
    return found[1]


class RedisTls:
    """An authority, certificates, an administrator for the test and the servers, and the users of the guides."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        """Write the files.

        Args:
            folder: for the files.
            hosts: the addresses of all servers.
        """
        self._folder = folder
        self._made = create(folder / "certificates", hosts, "headrace", dt.datetime.now(dt.UTC))
        (folder / "password").write_text(PASSWORD)

    def options(self, port: int) -> dict[str, str]:
        """The configuration of a server, of a cluster or not."""
        return {
            **self._options(port, "servers.acl", f">{PASSWORD} {rules_in('external-redis.md')}"),
            "tls-cluster": "yes",
            "masteruser": _ADMIN,
            "masterauth": _ADMIN_PASSWORD,
        }

    def sentinel_options(self, port: int, monitored: str) -> dict[str, str]:
        """The configuration of a Sentinel, after its line `sentinel monitor`."""
        return {
            **self._options(port, "sentinels.acl", f">{SENTINEL_PASSWORD} {rules_in('sentinel.md')}"),
            f"sentinel auth-user {monitored}": _ADMIN,
            f"sentinel auth-pass {monitored}": _ADMIN_PASSWORD,
        }

    def _options(self, port: int, users: str, headrace: str) -> dict[str, str]:
        file = self._folder / users
        file.write_text(
            f"user default off\nuser {_ADMIN} on >{_ADMIN_PASSWORD} ~* &* +@all\nuser headrace on {headrace}\n"
        )
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-replication": "yes",
            "tls-cert-file": str(self._made.server),
            "tls-key-file": str(self._made.server),
            "tls-ca-cert-file": str(self._made.authority),
            "aclfile": str(file),
        }

    @property
    def admin(self) -> dict[str, Any]:
        """Arguments of redis-py's clients, for the test."""
        return {
            "ssl": True,
            "ssl_ca_certs": str(self._made.authority),
            "ssl_certfile": str(self._made.server),
            "username": _ADMIN,
            "password": _ADMIN_PASSWORD,
        }

    def url(self, url: str) -> str:
        """What a broker is given: a storage URL of these servers with TLS, the user and a certificate, no password."""
        scheme, _, rest = url.partition("://")
        query = f"ssl_certfile={self._made.client}&ssl_keyfile={self._made.client}"
        return f"{scheme.replace('redis', 'rediss', 1)}://headrace@{rest}{'&' if '?' in rest else '?'}{query}"

    def whole(self, url: str) -> str:
        """The same with the password and the authority, for readers of the storage."""
        return self.url(url).replace("headrace@", f"headrace:{PASSWORD}@") + f"&ssl_ca_certs={self._made.authority}"

    @property
    def arguments(self) -> list[str]:
        """Return a broker's options in addition to the URL."""
        return ["--redis-password-file", str(self._folder / "password"), "--redis-ca", str(self._made.authority)]
