"""The server's own options. Parsers raise ValueError with the expected form."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.storage.redis.url import StorageUrl
from headrace.text.addresses import Address
from headrace.text.environment import PREFIX

_MOST_BROKERS = 64
_LEAST_MEMORY = 16 << 20
"""Smallest memory limit in bytes with which a Valkey can work."""
_UNITS = {"": 1, "b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


def memory_size(text: str) -> int:
    """Return bytes. Units are those of Redis: `512mb` is 512 * 1024 * 1024, `512m` is 512,000,000."""
    match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"expected a size like 512mb or 4gb, found {text!r}")
    size = int(match[1]) * _UNITS[match[2]]
    if 0 < size < _LEAST_MEMORY:
        raise ValueError(
            f"expected at least {_LEAST_MEMORY >> 20}mb, or 0 for no limit, found {text!r}: is it the unit?"
        )
    return size


def broker_count(text: str) -> int:
    """Return the number of brokers on one machine."""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:4]) <= _MOST_BROKERS):
        raise ValueError(f"expected a number from 1 to {_MOST_BROKERS}, found {text!r}")
    return int(text)


DEFAULT_DATA = "./.headrace"


class Option(msgspec.Struct, frozen=True):
    """An option of the server."""

    name: str
    metavar: str
    default: str | None
    parse: Callable[[str], object]
    """Parses the text. Raises ValueError with the expected form."""
    doc: str

    @property
    def flag(self) -> str:
        """`--log-level`."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """`HEADRACE_LOG_LEVEL`."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def field(self) -> str:
        """Attribute of ServerOptions."""
        return self.name.replace("-", "_")


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}, found {text!r}")
        return text

    return parse


def _redis_url(text: str) -> str:
    try:
        StorageUrl.parse(text)
    except ValueError as error:
        found = "one of another kind" if may_be_secret(text) else repr(text)
        raise ValueError(f"{error}, found {found}") from None
    return text


def may_be_secret(url: str) -> bool:
    """Return whether a Redis URL, even malformed, may contain a password."""
    return "@" in url or "password" in url


def _http_address(text: str) -> Address:
    scheme, mark, rest = text.strip().rpartition("://")
    if scheme.lower() not in {"", "http", "https"} or (mark and not scheme):
        raise ValueError(f"expected HOST:PORT or https://HOST:PORT, found {text!r}")
    return Address.parse(rest)


def _directory(text: str) -> Path:
    if not text:
        raise ValueError("expected a directory, found nothing")
    return Path(text).expanduser()


OPTIONS: tuple[Option, ...] = (
    Option("data", "DIR", DEFAULT_DATA, _directory,
        doc="Directory of the embedded Valkey's files, for one server at a time. Not used with --redis."),
    Option("redis", "URL", None, _redis_url,
        doc="Use this Redis (7.0 or later) or Valkey instead of the embedded one. redis:// or unix:// for one "
            "server, redis+cluster:// for a Redis Cluster, redis+sentinel:// for Sentinels, and rediss for TLS."),
    Option("redis-password-file", "FILE", None, _directory,
        doc="File with the password of --redis in its first line. The user is in the URL: redis://USER@HOST:6379."),
    Option("redis-ca", "FILE", None, _directory,
        doc="PEM file with certificate authorities for rediss://, in addition to those of the system."),
    Option("kafka", "HOST:PORT", "127.0.0.1:9092", Address.parse,
        doc="Address of the Kafka listener. Port 0 selects a free port."),
    Option("http", "HOST:PORT", "127.0.0.1:8080", _http_address,
        doc="Address of the OCI API and the web console. Port 0 selects a free port. https://HOST:PORT uses TLS."),
    Option("advertise", "HOST:PORT", None, Address.told,
        doc="Address that the server advertises to Kafka clients, if it differs from the listener's."),
    Option("bootstrap-user", "FILE", None, _directory,
        doc="File with NAME:PASSWORD of a super user. The server creates this user if it has no users yet."),
    Option("brokers", "N", "1", broker_count,
        doc="Number of brokers over the embedded Valkey. Each is a process, and their ports are consecutive."),
    Option("fsync", "no|always", "no", _choice("no", "always"),
        doc="'no' survives kill -9 of every process. 'always' also survives power loss, at the speed of the disk."),
    Option("valkey", "PATH", None, _directory,
        doc="Start this valkey-server (8.0 or later) or redis-server (7.0 or later) instead of the bundled one."),
    Option("maxmemory", "SIZE", None, memory_size,
        doc="Memory of the embedded Valkey, such as 4gb (default: half of the machine's; 0: no limit)."),
    Option("log-level", "LEVEL", "info", _choice("debug", "info", "warning", "error"),
        doc="The least severe messages that are logged: debug, info, warning or error."),
    Option("log-format", "FORMAT", "auto", _choice("auto", "text", "json"),
        doc="text, json, or auto: text on a terminal, else json."),
)  # fmt: skip
