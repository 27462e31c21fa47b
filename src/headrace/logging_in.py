"""Puts logins together: who has a password, and who may log in at which listener by what."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import structlog

from headrace.access.listeners import Protocol
from headrace.access.principal import ANONYMOUS
from headrace.broker.authorizing import FIRST
from headrace.broker.broker import Broker
from headrace.broker.clusters import Clusters
from headrace.broker.logins import Logins
from headrace.broker.settings import BrokerSettings
from headrace.broker.users import LONGEST_NAME, LONGEST_PASSWORD, Users
from headrace.listening import Bound
from headrace.logins.listener import ListenerLogins
from headrace.oci.exposure import kafka_login_required
from headrace.oci.logins import PoolLogins, is_pool_name
from headrace.oci.settings import OciSettings
from headrace.settings import StartError

_log = structlog.get_logger("headrace.logins")


async def opened_users(clusters: Clusters, first: Path | None, stack: contextlib.AsyncExitStack) -> Users:
    """Everybody who has a password; raises StartError. `first`: a file with who gets one if nobody has."""
    users = Users(clusters.default.storage.documents, clusters.clock)
    stack.callback(users.close)
    await users.load()
    for _, broker in clusters:
        broker.users = users
    if first is not None and not users.names:
        name, password = _read(first)
        # First what the name may do: who is there already is not made again by the next start.
        await clusters.default.storage.documents.save({(FIRST, name): b""})
        await clusters.access.load()
        await users.create(name, password)
        _log.info("the first user was made", user=name)
    return users


def _read(path: Path) -> tuple[str, str]:
    """Name and password in a file; raises StartError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise StartError(f"--bootstrap-user {path}: {reason}; it has to be a file with NAME:PASSWORD") from None
    name, colon, password = text.strip().partition(":")
    fits = (
        colon and 0 < len(name) <= LONGEST_NAME and 0 < len(password) <= LONGEST_PASSWORD and "\n" not in text.strip()
    )
    # Whoever does not log in has that name, and is not to be a super user.
    if not fits or name == ANONYMOUS.name:
        # Not a word of what is in it: it may be a password.
        raise StartError(f"--bootstrap-user {path}: expected one line NAME:PASSWORD, found something else")
    return name, password


def logins_at(
    bound: Bound,
    settings: BrokerSettings,
    oci: OciSettings,
    clusters: Clusters,
    cluster_of_pool: Callable[[str], Broker | None],
) -> Logins | None:
    """Who may log in at a listener; None: nobody, and nobody has to."""
    protocol = bound.listener.protocol
    if protocol is Protocol.SSL:
        return None
    # Any token will do for a pool unless tokens are verified: nothing to rely on where a login is asked for.
    pools = PoolLogins(oci, cluster_of_pool).admit if not protocol.login or oci.auth == "verify" else None
    mechanisms = settings.sasl_enabled_mechanisms.split(",") if protocol.login else ["PLAIN"]
    return ListenerLogins(
        clusters.default,
        clusters.default.users if protocol.login else None,
        pools,
        is_pool_name,
        required=protocol.login or kafka_login_required(oci, bound.host),
        mechanisms=tuple(each.strip() for each in mechanisms),
        clock=clusters.clock,
        delay_ms=settings.connection_failed_authentication_delay_ms,
        lifetime_ms=settings.connections_max_reauth_ms if protocol.login else 0,
    )
