"""Reasons why a storage cannot be used: one line with the problem and the remedy."""

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
)

from headrace.storage.redis.clients import PrimaryUnavailable
from headrace.storage.redis.url import without_password


class StoreError(Exception):
    """Base of the errors while a storage is opened."""


class WrongLayout(StoreError):
    """Another version of Headrace wrote the keyspace, in an unknown layout."""


class Unreachable(StoreError):
    """Redis does not respond, or rejects the connection."""


class TooOld(StoreError):
    """The server is older than the scripts require."""


class WrongKind(StoreError):
    """The server needs a URL of another kind."""


class Evicting(StoreError):
    """Redis evicts keys when its memory is full."""


_BY_TEXT = {
    "without any password configured": (
        "has no password, but its URL has one",
        "remove it from the URL, or set one in Redis (requirepass)",
    ),
    "NOREPLICAS": (
        "accepts no writes: NOREPLICAS",
        "connect its replicas, or lower its min-replicas-to-write",
    ),
    "used memory > 'maxmemory'": (
        "accepts no writes: its memory is full (OOM)",
        "raise its maxmemory, lower retention.ms or retention.bytes of large topics, or delete topics",
    ),
    "MISCONF": (
        "accepts no writes: it cannot write its own files (MISCONF)",
        "free space on its disk, and see its log",
    ),
    "DB index is out of range": (
        "has no database of that number",
        "end the URL with an existing one, such as /0",
    ),
    r'got "\x15" as reply': ("requires TLS", "begin its URL with rediss instead of redis"),
    "as reply type byte": (
        "is not a Redis: the server at this address uses another protocol",
        "set the address of a Redis with --redis URL",
    ),
    "WRONGTYPE": (
        "has foreign data under a key of Headrace (WRONGTYPE)",
        "use another database or another Redis with --redis URL, or find the program that wrote to headrace:*",
    ),
    "Cluster mode is not enabled": ("is not a cluster", "use redis://HOST:PORT for a single server"),
}
"""Text in Redis's or redis-py's error -> problem and remedy. The first match counts."""


REFUSED_WRITES = ("OOM ", "MISCONF ", "NOREPLICAS ")
"""First words of a reply that refuses writes only."""


def write_refusal(reply: str) -> str | None:
    """Return why Redis refuses writes, and what to try; None if the reply refuses more than writes, or nothing."""
    if not reply.startswith(REFUSED_WRITES):
        return None
    found = refused(reply)
    if found is None:
        return f"Redis accepts no writes: {without_script_line(reply)}"
    # Of these, only MISCONF continues with a reason.
    answered = f"; it answered: {without_script_line(reply)}" if reply.startswith("MISCONF") else ""
    return f"Redis {found[0]}; {found[1]}{answered}"


NOT_PERMITTED = ("ACL failure in script", "The user executing the script can't ")
"""Text after `ERR` when Redis denies a user a command in a script: since Redis 7.2, and before."""
_WHERE = re.compile(r"(?<! in) script: .*", re.DOTALL)


class Stray(Exception):
    """A log's stream has entries of another program. Internal to this package."""


def without_script_line(text: str) -> str:
    """Remove the script's line number from an error of Redis."""
    return _WHERE.sub("", text)


def unusable(error: Exception, url: str) -> Unreachable:
    """Return the error for a Redis that cannot be used."""
    return Unreachable(f"Redis at {without_password(url)} {'; '.join(in_the_way(error, url))}")


def in_the_way(error: Exception, url: str) -> tuple[str, str]:
    """Return the problem with a Redis, to be read after its name, and the remedy."""
    text = without_script_line(str(error)).rstrip(".")
    if isinstance(error, AuthenticationError) and "without any" not in text:
        if "invalid" in text:
            advice = "check its URL: write special characters such as @ and : as %40 and %3A"
            return "refuses the user name or the password", advice
        advice = "set HEADRACE_REDIS=redis://:PASSWORD@HOST:PORT, or write it to a file for"
        return "requires a password", f"{advice} --redis-password-file"
    if isinstance(error, NoPermissionError):
        return _too_little(text)
    if isinstance(error, ReadOnlyError):
        return "is a replica, which accepts no records", "use its primary with --redis URL"
    if isinstance(error, BusyLoadingError):
        return "is still loading its data", "start again when it has finished"
    return refused(text) or _otherwise(error, url)


def refused(text: str) -> tuple[str, str] | None:
    """Return problem and remedy of an error that Redis reported, or None."""
    if any(words in text for words in (*NOT_PERMITTED, "NOPERM ")):
        return _too_little(text)
    return next((found for words, found in _BY_TEXT.items() if words in text), None)


def _too_little(text: str) -> tuple[str, str]:
    return f"denies this user a command: {text}", "Headrace needs all commands on its keys (ACL SETUSER)"


def _otherwise(error: Exception, url: str) -> tuple[str, str]:
    """redis-py distinguishes these errors by their text or cause only."""
    text = str(error).rstrip(".")
    if "unknown command" in text:
        return f"lacks a command: {text}", "Headrace needs all commands on its keys, also in scripts: do not rename any"
    if isinstance(error, PrimaryUnavailable):
        return f"has a primary that does not respond: {text}", "start it, or promote a replica"
    uncovered = re.search(r"(\d+) of (\d+) covered", text)
    if uncovered is not None:
        slots = int(uncovered[2]) - int(uncovered[1])
        return (
            f"has {slots} slots without a primary: their data can be neither read nor written",
            "see `redis-cli --cluster check`, and assign each slot to a primary",
        )
    if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
        return in_the_way(error.__cause__, url)
    return f"does not answer: {text}", _about_tls(text, url) or (
        "start it, or set another with --redis URL or HEADRACE_REDIS (without either, the server starts its own)"
    )


def _about_tls(text: str, url: str) -> str:
    """If only one side uses TLS, neither reports it."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "set the authority of its certificate with --redis-ca FILE, and use the host name in the certificate"
    if any(told in text.lower() for told in ("reset by peer", "closed by", "timeout connecting")):
        if url.startswith("rediss"):
            return "if it has no TLS, begin its URL with redis instead of rediss; otherwise start it"
        return "if it requires TLS, begin its URL with rediss instead of redis; otherwise start it, or set another"
    return ""
