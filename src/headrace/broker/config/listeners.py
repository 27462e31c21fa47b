"""Settings of one listener: `listener.name.NAME.KEY` goes over `KEY` (KIP-103); NAME in lower case, as Kafka has it.

At listeners with SASL_SSL `ssl.client.auth` counts only with that prefix (KIP-684): there a login tells who a client
is, and what is said for all listeners is meant for those where certificates do.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.config.security import SECURITY_KEYS
from headrace.security.access.listeners import Listener, Protocol
from headrace.topics.config_keys import InvalidSetting, plain_text

if TYPE_CHECKING:
    from headrace.broker.config.settings import BrokerSettings

PREFIX = "listener.name."
PER_LISTENER = (
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.client.auth",
    "ssl.principal.mapping.rules",
    "sasl.enabled.mechanisms",
    "connections.max.reauth.ms",
)
"""What a listener may have of its own."""

_KEYS = {key.name: key for key in SECURITY_KEYS if key.name in PER_LISTENER}
_PREFIXED = re.compile(re.escape(PREFIX) + r"(?P<listener>[A-Za-z0-9_-]+)\.(?P<key>.+)")
_CLIENT_AUTH = "ssl.client.auth"


def checked(name: str, text: str) -> str:
    """The plain form of the text of a setting whose name begins with `PREFIX`; raises InvalidSetting."""
    match = _PREFIXED.fullmatch(name)
    if match is None:
        raise InvalidSetting(f"{name}: expected {PREFIX}NAME.KEY, such as {PREFIX}sasl_ssl.ssl.client.auth")
    listener, key = match["listener"], match["key"]
    if key not in _KEYS:
        raise InvalidSetting(f"{name}: a listener has no {key} of its own; it may have {', '.join(PER_LISTENER)}")
    if listener != listener.lower():
        raise InvalidSetting(f"{name}: write the listener's name in lower case, {PREFIX}{listener.lower()}.{key}")
    try:
        return plain_text(_KEYS, key, text, "setting")
    except InvalidSetting as error:
        raise InvalidSetting(f"{name.removesuffix(key)}{error}") from None


def named(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of what was given, the names with a prefix, and the listener each is about, in upper case."""
    for name in given:
        match = _PREFIXED.fullmatch(name)
        if match is not None:
            yield name, match["listener"].upper()


def settings_at(listener: Listener, settings: "BrokerSettings") -> "BrokerSettings":
    """The settings as they are for one listener."""
    own = {
        key: text
        for key in PER_LISTENER
        if (text := settings.given.get(f"{PREFIX}{listener.name.lower()}.{key}")) is not None
    }
    if passes_over_client_auth(listener, settings):
        own[_CLIENT_AUTH] = "none"
    return msgspec.structs.replace(settings, **{_KEYS[key].field: _KEYS[key].parse(text) for key, text in own.items()})


def passes_over_client_auth(listener: Listener, settings: "BrokerSettings") -> bool:
    """Whether `ssl.client.auth` asks for certificates, but not at this listener (KIP-684)."""
    return (
        listener.protocol is Protocol.SASL_SSL
        and settings.ssl_client_auth != "none"
        and f"{PREFIX}{listener.name.lower()}.{_CLIENT_AUTH}" not in settings.given
    )
