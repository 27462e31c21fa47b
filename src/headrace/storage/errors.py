"""Why a storage cannot be used. Messages are one line for a person: what is in the way, and what to try."""

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
    """Base of what goes wrong while a storage is opened."""


class WrongLayout(StoreError):
    """The keyspace was written by another Headrace, in a layout that this one does not know."""


class Unreachable(StoreError):
    """Redis does not answer, or refuses the connection."""


class TooOld(StoreError):
    """The server at the URL is older than what the scripts need."""


class WrongKind(StoreError):
    """What is at the URL is named by a URL of another kind."""


class Evicting(StoreError):
    """Redis removes keys by itself when its memory is full."""


_BY_TEXT = {
    "without any password configured": (
        "has no password, and its URL has one",
        "take it out of the URL, or set one there (requirepass)",
    ),
    "NOREPLICAS": (
        "takes no writes: NOREPLICAS",
        "see that its replicas are connected, or lower its min-replicas-to-write",
    ),
    "MISCONF": (
        "takes no writes: it cannot write its own files (MISCONF)",
        "make room on its disk; its log says what went wrong",
    ),
    "DB index is out of range": (
        "has no database of that number",
        "end the URL with one that it has, such as /0",
    ),
    r'got "\x15" as reply': ("wants TLS", "its URL begins with rediss instead of redis"),
    "as reply type byte": (
        "is no Redis: what listens there speaks another protocol",
        "name the port of a Redis with --redis URL",
    ),
    "WRONGTYPE": (
        "has what no Headrace wrote under one of its keys (WRONGTYPE)",
        "name a database or a Redis that has none of them with --redis URL, or see what wrote to headrace:*",
    ),
    "Cluster mode is not enabled": ("is no cluster", "name a single server with redis://HOST:PORT"),
}
"""What stands in Redis' answer, or redis-py's words; what that means, and what to try. The first counts."""


NOT_PERMITTED = ("ACL failure in script", "The user executing the script can't ")
"""How Redis begins, behind `ERR`, where it refuses a script's command to a user: from Redis 7.2 on, and before."""
_WHERE = re.compile(r"(?<! in) script: .*", re.DOTALL)


class Stray(Exception):
    """A log's stream has entries of another program. Never leaves this room."""


def without_script_line(text: str) -> str:
    """What Redis says of a script, but for the line: where in a script of ours it was tells nobody why."""
    return _WHERE.sub("", text)


def unusable(error: Exception, url: str) -> Unreachable:
    """That a Redis cannot be used, with its URL, why, and what to try; the arguments are those of `in_the_way`."""
    return Unreachable(f"Redis at {without_password(url)} {'; '.join(in_the_way(error, url))}")


def in_the_way(error: Exception, url: str) -> tuple[str, str]:
    """What keeps a Redis that somebody named from being used, to be read after its name; and what to try.

    Args:
        error: what was raised at the first thing it was asked.
        url: by which it was named.
    """
    text = without_script_line(str(error)).rstrip(".")
    if isinstance(error, AuthenticationError) and "without any" not in text:
        if "invalid" in text:
            advice = "look at its URL: what is special in one, such as @ and :, is written %40 and %3A there"
            return "refuses the user name or the password", advice
        advice = "put it into the URL, redis://:PASSWORD@HOST:PORT, and that into HEADRACE_REDIS, or into a file for"
        return "wants a password", f"{advice} --redis-password-file"
    if isinstance(error, NoPermissionError):
        return _too_little(text)
    if isinstance(error, ReadOnlyError):
        return "is a replica, which takes no records", "name its primary with --redis URL"
    if isinstance(error, BusyLoadingError):
        return "is still loading its data", "start again when it has"
    return refused(text) or _otherwise(error, url)


def refused(text: str) -> tuple[str, str] | None:
    """The same where Redis, which does answer, says itself what is in the way; None: it does not."""
    if any(words in text for words in (*NOT_PERMITTED, "NOPERM ")):
        return _too_little(text)
    return next((found for words, found in _BY_TEXT.items() if words in text), None)


def _too_little(text: str) -> tuple[str, str]:
    return f"lets this user do too little: {text}", "a server needs all commands on its keys (ACL SETUSER)"


def _otherwise(error: Exception, url: str) -> tuple[str, str]:
    """redis-py tells some of it in texts only, of a cluster in those of one class of errors, or in what led to them."""
    text = str(error).rstrip(".")
    if "unknown command" in text:
        return f"lacks a command: {text}", "a server needs all commands on its keys, scripts too: rename none"
    if isinstance(error, PrimaryUnavailable):
        return f"has a primary that does not answer: {text}", "start it, or have a replica take its place"
    uncovered = re.search(r"(\d+) of (\d+) covered", text)
    if uncovered is not None:
        slots = int(uncovered[2]) - int(uncovered[1])
        return (
            f"has {slots} slots that no primary serves: what lies there could be neither read nor written",
            "see `redis-cli --cluster check`, and give each slot a primary",
        )
    if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
        return in_the_way(error.__cause__, url)
    return f"does not answer: {text}", _about_tls(text, url) or (
        "start it, or name another with --redis URL or HEADRACE_REDIS (without either, the server starts its own)"
    )


def _about_tls(text: str, url: str) -> str:
    """What to try where one side speaks TLS and the other does not: neither says so. Empty: something else it is."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "name the authority of its certificate with --redis-ca FILE, and the host that the certificate is for"
    if any(told in text.lower() for told in ("reset by peer", "closed by", "timeout connecting")):
        if url.startswith("rediss"):
            return "if it has no TLS, its URL begins with redis instead of rediss; else start it"
        return "if it wants TLS, its URL begins with rediss instead of redis; else start it, or name another"
    return ""
