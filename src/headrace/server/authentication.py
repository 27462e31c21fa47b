"""Compose users, tokens, and the logins of listeners."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from headrace.broker.admin.acl_authorizer import FIRST
from headrace.broker.admin.users import LONGEST_NAME, LONGEST_PASSWORD, Users
from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.logins import Logins
from headrace.broker.runtime.clock import Clock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.oci.kafka_logins import PoolLogins, is_pool_name
from headrace.oci.settings import OciSettings, kafka_login_required
from headrace.sasl.listener import Check, ListenerLogins
from headrace.security.access.listeners import is_loopback
from headrace.security.access.principal import ANONYMOUS
from headrace.server.config import StartError
from headrace.server.listeners import BoundListener
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.sasl.tokens import Tokens

_OAUTHBEARER = "OAUTHBEARER"
_NO_KEYS = (
    "sasl.enabled.mechanisms has OAUTHBEARER, which needs the keys that tokens are signed with: "
    "add --set sasl.oauthbearer.jwks.endpoint.url=https://HOST/PATH or file:///PATH"
)
_log = structlog.get_logger("headrace.server")


class Known(msgspec.Struct, frozen=True):
    """Principals that this server can authenticate."""

    users: Users
    """Users with a password."""
    tokens: Check | None
    """Returns the principal of a token; None: tokens are refused."""


async def opened_logins(
    clusters: VirtualClusters, settings: BrokerSettings, first: Path | None, stack: contextlib.AsyncExitStack
) -> Known:
    """Load users and token keys. Raises StartError.

    `first` is the file of the bootstrap user, created only while no user exists.
    """
    users = await _opened_users(clusters, first, stack)
    tokens = await _opened_tokens(settings, clusters.clock, stack)
    return Known(users, None if tokens is None else tokens.check)


async def _opened_users(clusters: VirtualClusters, first: Path | None, stack: contextlib.AsyncExitStack) -> Users:
    users = Users(clusters.default.storage.documents, clusters.clock)
    stack.callback(users.close)
    await users.load()
    # The whole server shares the users of the default virtual cluster.
    clusters.default.users = users
    if first is not None and not users.exist:
        name, password = _read(first)
        # Rights first: after a crash in between, the next start would find a user and not create them.
        await clusters.default.storage.documents.save({(FIRST, name): b""})
        await clusters.access.load()
        await users.create(name, password)
        _log.info("first user created", user=name)
    return users


def _read(path: Path) -> tuple[str, str]:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise StartError(f"--bootstrap-user {path}: {reason}; it has to be a file with NAME:PASSWORD") from None
    name, colon, password = text.strip().partition(":")
    fits = (
        colon and 0 < len(name) <= LONGEST_NAME and 0 < len(password) <= LONGEST_PASSWORD and "\n" not in text.strip()
    )
    # The name of unauthenticated clients must not become a super user.
    if not fits or name == ANONYMOUS.name:
        # Do not repeat the content, which may be a password.
        raise StartError(f"--bootstrap-user {path}: expected one line NAME:PASSWORD, found something else")
    return name, password


async def _opened_tokens(settings: BrokerSettings, clock: Clock, stack: contextlib.AsyncExitStack) -> "Tokens | None":
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        if _OAUTHBEARER in _mechanisms(settings):
            raise StartError(_NO_KEYS)
        return None
    try:
        # Optional dependency, and slow to import.
        from headrace.sasl.jwks import Keys, KeysUnreadable, checked  # noqa: PLC0415
        from headrace.sasl.tokens import TokenRules, Tokens  # noqa: PLC0415
    except ImportError as error:
        needed = extras.explained("sasl.oauthbearer.jwks.endpoint.url", error)
        raise StartError(f"{needed}; or leave the setting out") from None
    try:
        keys = Keys(
            checked(url, insecure=settings.headrace_insecure), settings.sasl_oauthbearer_jwks_endpoint_refresh_ms, clock
        )
    except ValueError as error:
        raise StartError(str(error)) from None
    stack.callback(keys.close)
    try:
        await keys.load()
    except KeysUnreadable as error:
        if url.startswith("file:"):
            raise StartError(f"sasl.oauthbearer.jwks.endpoint.url={error}") from None
        # Start anyway: other logins work, and the keys are loaded again periodically.
        _log.error("the token keys (JWKS) cannot be loaded; all tokens are rejected", reason=str(error))
    rules = TokenRules(
        tuple(each.strip() for each in settings.sasl_oauthbearer_expected_audience.split(",") if each.strip()),
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds * 1000,
    )
    if not rules.audiences:
        _log.warning("tokens for other services are accepted: set sasl.oauthbearer.expected.audience")
    return Tokens(keys, rules, clock)


def _mechanisms(settings: BrokerSettings) -> tuple[str, ...]:
    return tuple(each.strip() for each in settings.sasl_enabled_mechanisms.split(","))


def logins_at(
    bound: BoundListener,
    oci: OciSettings,
    clusters: VirtualClusters,
    tokens: Check | None,
    cluster_of_pool: Callable[[str], Broker | None],
) -> Logins | None:
    """Return the logins that a listener accepts, or None if it has no login. Raises StartError."""
    protocol, settings = bound.listener.protocol, bound.settings
    if bound.certified:
        return None
    if protocol.login and tokens is None and _OAUTHBEARER in _mechanisms(settings):
        raise StartError(_NO_KEYS)
    # Without token verification any token is accepted, as the HTTP API accepts any key. Do not open a password listener
    # to other machines that way.
    any_token = not protocol.login or is_loopback(bound.host) or settings.headrace_insecure
    return ListenerLogins(
        clusters.default,
        clusters.default.users if protocol.login else None,
        PoolLogins(oci, cluster_of_pool, any_token=any_token).admit,
        tokens,
        is_pool_name,
        required=protocol.login or kafka_login_required(oci, bound.host),
        mechanisms=_mechanisms(settings) if protocol.login else ("PLAIN",),
        clock=clusters.clock,
        delay_ms=settings.connection_failed_authentication_delay_ms,
        lifetime_ms=settings.connections_max_reauth_ms if protocol.login else 0,
    )
