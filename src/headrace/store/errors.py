"""Why a storage cannot be used. Messages are one line for a person: what is in the way, and what to try."""

import re

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
)


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


class Stray(Exception):
    """A log's stream has entries that somebody else wrote. Never leaves this room."""


def in_the_way(error: Exception) -> tuple[str, str]:
    """What keeps a Redis that somebody named from being used, to be read after its name; and what to try.

    Args:
        error: what redis-py raised at the first thing it asked.
    """
    text = str(error).rstrip(".")
    if isinstance(error, AuthenticationError):
        if "invalid" in text:
            advice = "look at its URL: what is special in one, such as @ and :, is written %40 and %3A there"
            return "refuses the user name or the password", advice
        return "wants a password", "put it into the URL, redis://:PASSWORD@HOST:PORT, and that into HEADRACE_REDIS"
    if isinstance(error, NoPermissionError):
        return f"lets this user do too little: {text}", "a server needs all commands on its keys (ACL SETUSER)"
    if isinstance(error, ReadOnlyError):
        return "is a replica, which takes no records", "name its primary with --redis URL"
    if isinstance(error, BusyLoadingError):
        return "is still loading its data", "start again when it has"
    return _in_the_way_by_text(error)


def _in_the_way_by_text(error: Exception) -> tuple[str, str]:
    """redis-py tells some of it in texts only, of a cluster in those of one class of errors, or in what led to them."""
    text = str(error)
    if "unknown command" in text:
        return f"lacks a command: {text}", "a server needs all commands on its keys, scripts too: rename none"
    uncovered = re.search(r"(\d+) of (\d+) covered", text)
    if uncovered is not None:
        slots = int(uncovered[2]) - int(uncovered[1])
        return (
            f"has {slots} slots that no primary serves: what lies there could be neither read nor written",
            "see `redis-cli --cluster check`, and give each slot a primary",
        )
    if "Cluster mode is not enabled" in text:
        return "is no cluster", "name a single server with redis://HOST:PORT"
    if isinstance(error, RedisClusterException) and isinstance(error.__cause__, Exception):
        return in_the_way(error.__cause__)
    return (
        f"does not answer: {text}",
        "start it, or name another with --redis URL or HEADRACE_REDIS (without either, the server starts its own)",
    )
