"""Makes a Redis Cluster of servers that run and know nothing of each other yet."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.retry import Retry

from headrace.server.config import Address

_PATIENCE_S = 60.0
_LOOK_S = 0.02
_CALM_MS = 30_000
"""So long a silence is a death, once they are formed: on a busy machine two seconds are none, and with whoever is
replaced goes what its replica has not got. Before that they say the sooner what they know, the sooner they miss."""


class NotFormed(Exception):
    """The servers did not become a cluster in time; the message says what was waited for."""


def form(nodes: Sequence[Address], primaries: int) -> None:
    """Give the first of them all slots, as many each, and each of the others one of those to follow, in turn.

    Returns when every replica has all that its primary has, and all of them agree on who has which slots.

    Raises:
        NotFormed: a minute was not enough.
        redis.RedisError: one of them refused.
    """
    for epoch, node in enumerate(nodes, 1):
        _wait_for(partial(_answers, node), f"{node} to answer")
        _ask(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
    for place, node in enumerate(nodes[:primaries]):
        first, end = (REDIS_CLUSTER_HASH_SLOTS * part // primaries for part in (place, place + 1))
        _ask(node, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    buses = [_bus(node) for node in nodes]
    for node, bus in list(zip(nodes, buses, strict=True))[1:]:
        _ask(nodes[0], "CLUSTER", "MEET", node.host, node.port, bus)
    _wait_for(lambda: _agree(nodes), "the nodes to know each other")
    for place, node in enumerate(nodes[primaries:]):
        _wait_for(partial(_followed, node, nodes[place % primaries]), f"{node} to follow")
    for node in nodes[primaries:]:
        _wait_for(partial(_synced, node), f"{node} to have all")
    _wait_for(lambda: _agree(nodes), "the nodes to agree")
    for node in nodes:
        _ask(node, "CONFIG", "SET", "cluster-node-timeout", _CALM_MS)


def _ask(node: Address, *command: str | int) -> Any:
    with redis.Redis(
        node.host, node.port, decode_responses=True, socket_timeout=30, retry=Retry(NoBackoff(), 0)
    ) as link:
        # The text as it is: redis-py makes something else of some answers.
        link.response_callbacks.clear()
        return link.execute_command(*command)


def _answers(node: Address) -> bool:
    try:
        return bool(_ask(node, "PING"))
    except redis.RedisError:
        return False


def _lines(node: Address) -> list[list[str]]:
    return [line.split(" ") for line in str(_ask(node, "CLUSTER", "NODES")).splitlines()]


def _own(node: Address) -> list[str]:
    return next(words for words in _lines(node) if "myself" in words[2])


def _bus(node: Address) -> int:
    """The port at which other nodes reach it: `ip:port@bus,host`."""
    return int(_own(node)[1].partition("@")[2].partition(",")[0])


def _agree(nodes: Sequence[Address]) -> bool:
    """Whether every one says that all is well, and all say the same of roles and slots."""
    told = set()
    for node in nodes:
        if "cluster_state:ok" not in _ask(node, "CLUSTER", "INFO"):
            return False
        lines = _lines(node)
        if len(lines) != len(nodes):
            return False
        told.add(str(sorted((words[0], words[2].replace("myself,", ""), words[3], *words[8:]) for words in lines)))
    return len(told) == 1


def _followed(node: Address, primary: Address) -> bool:
    """Ask to follow; whether that was possible: a node that has not heard of the other one refuses."""
    try:
        _ask(node, "CLUSTER", "REPLICATE", _own(primary)[0])
    except redis.ResponseError:
        return False
    return True


def _synced(node: Address) -> bool:
    role = _ask(node, "ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")


def _wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            raise NotFormed(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(_LOOK_S)
