"""Settings of the OCI API, such as `--set oci.auth=verify`."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.oci.faults import parse as parse_faults
from headrace.security.access.listeners import is_loopback
from headrace.topics.config_keys import ConfigKey, ConfigType, InvalidSetting, plain_text

PREFIX = "oci."

OCI_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("oci.enable", ConfigType.BOOLEAN, "true",
        doc="Whether the server serves the OCI API. false: requests get 404 with the reason, and Kafka clients cannot "
            "log in with a stream pool."),
    ConfigKey("oci.auth", ConfigType.STRING, "parse", choices=("verify", "parse", "off"),
        doc="HTTP signatures: verify checks them against keys, parse only reads the user, and off ignores them. With "
            "authorizer.class.name, only verify is allowed, and without a value the OCI API refuses every request."),
    ConfigKey("oci.auth.keys", ConfigType.STRING, "",
        doc="Directory of public keys for oci.auth=verify: <tenancy>/<user>/<fingerprint>.pem, with dashes instead "
            "of colons."),
    ConfigKey("oci.auth.tokens", ConfigType.STRING, "",
        doc="File of auth tokens of Kafka clients for oci.auth=verify. Each line is <tenancy>/[<domain>/]<user>, a "
            "space, and the token or sha256:<its SHA-256 in hex>."),
    ConfigKey("oci.auth.kafka", ConfigType.STRING, "auto", choices=("auto", "required", "optional"),
        doc="Whether Kafka clients must log in (SASL PLAIN). auto: with oci.auth=verify on addresses other than "
            "loopback. Clients without a login use the default stream pool."),
    ConfigKey("oci.kafka", ConfigType.STRING, "off", choices=("off", "strict"),
        doc="Whether Kafka listeners refuse what the endpoint of OCI Streaming does not support (strict), for "
            "tests. With strict, the default of auto.create.topics.enable is false."),
    ConfigKey("oci.region", ConfigType.STRING, "local", doc="Region in the OCIDs of new resources."),
    ConfigKey("oci.messages.endpoint", ConfigType.STRING, "",
        doc="messagesEndpoint of streams. Empty: the address of the client's request."),
    ConfigKey("oci.pools", ConfigType.STRING, "shared", choices=("shared", "compartment"),
        doc="Whether all compartments share one default stream pool, which Kafka clients use (shared), or each has "
            "its own (compartment)."),
    ConfigKey("oci.limits", ConfigType.STRING, "off", choices=("off", "strict"),
        doc="Rate limits of the service: 1 MB/s written per partition, 5 reads/s per partition and group."),
    ConfigKey("oci.partitions.max", ConfigType.INT, "0", minimum=0,
        doc="Maximum number of partitions of all streams of a tenancy. 0: unlimited (50 or 200 in the service)."),
    ConfigKey("oci.get.bytes", ConfigType.INT, "1048576", minimum=1,
        doc="Approximate maximum number of bytes of keys and values in a GetMessages response. It has at least one "
            "message."),
    ConfigKey("oci.cursor.expiry.ms", ConfigType.LONG, "300000", minimum=1,
        doc="Time for which a cursor is valid."),
    ConfigKey("oci.committed.offset", ConfigType.STRING, "last", choices=("last", "next"),
        doc="committedOffset in GetGroup responses: the last committed offset (-1: none), or the next one to read."),
    ConfigKey("oci.lifecycle.delay.ms", ConfigType.LONG, "0", minimum=0,
        doc="Time for which streams, pools and harnesses are in the states CREATING, UPDATING and DELETING."),
    ConfigKey("oci.work.requests", ConfigType.BOOLEAN, "true",
        doc="Whether responses have opc-work-request-id. Newer waiters need it, and older examples wait for it in "
            "vain."),
    ConfigKey("oci.faults", ConfigType.STRING, "",
        doc="Injected faults for tests of retries, such as PutMessages:429*3: see docs/oci-operations.md."),
    ConfigKey("oci.faults.header", ConfigType.BOOLEAN, "false",
        doc="Whether a request may inject faults with the header x-headrace-fault. For tests only."),
)  # fmt: skip

OCI_KEY = {key.name: key for key in OCI_KEYS}

DISABLED = "The OCI API is disabled on this server (oci.enable=false)"
UNCONFIGURED = (
    "The OCI API of this server accepts no client, because authorizer.class.name is set and oci.auth is not. Start the "
    "server with --set oci.auth=verify --set oci.auth.keys=DIR, or disable the API with --set oci.enable=false"
)


class OciSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The checked settings: keys without `oci.`, with underscores for dots."""

    enable: bool
    auth: Literal["verify", "parse", "off", "refuse"]
    """`refuse`: no request is accepted, because ACLs need a choice. It is never configured."""
    auth_keys: str
    auth_tokens: str
    auth_kafka: Literal["auto", "required", "optional"]
    kafka: Literal["off", "strict"]
    region: str
    messages_endpoint: str
    pools: Literal["shared", "compartment"]
    limits: Literal["off", "strict"]
    partitions_max: int
    get_bytes: int
    cursor_expiry_ms: int
    committed_offset: Literal["last", "next"]
    lifecycle_delay_ms: int
    work_requests: bool
    faults: str
    faults_header: bool

    @classmethod
    def of(cls, given: Mapping[str, str] | None = None) -> "OciSettings":
        """Return settings from defaults and overrides. Raises InvalidSetting."""
        texts = {name: cls.check(name, text) for name, text in (given or {}).items()}
        values = {}
        for key in OCI_KEYS:
            text = texts.get(key.name, key.default)
            assert text is not None
            values[key.field.removeprefix("oci_")] = key.parse(text)
        return msgspec.convert(values, cls)

    @staticmethod
    def check(name: str, text: str) -> str:
        """Return a setting's value as plain text. Raises InvalidSetting."""
        plain = plain_text(OCI_KEY, name, text, "setting")
        if name == "oci.faults":
            try:
                parse_faults(text)
            except ValueError as error:
                raise InvalidSetting(f"{name}={text}: {error}") from None
        return plain

    @property
    def closed(self) -> str:
        """Why no client can use the API, or empty."""
        if not self.enable:
            return DISABLED
        return UNCONFIGURED if self.auth == "refuse" else ""


def missing_credentials(settings: OciSettings, kafka_hosts: list[str]) -> str | None:
    """Return what `oci.auth` requires but is missing, with the remedy, or None."""
    if settings.closed and settings.auth_kafka == "required":
        why = "oci.auth=verify is not set" if settings.enable else "oci.enable=false refuses them"
        return (
            f"oci.auth.kafka=required needs logins with auth tokens, and {why}: leave oci.auth.kafka out, or "
            "add --set oci.auth=verify --set oci.auth.keys=DIR --set oci.auth.tokens=FILE"
        )
    if settings.closed or settings.auth != "verify":
        return None
    if not settings.auth_keys:
        return "oci.auth=verify needs keys: add --set oci.auth.keys=DIR"
    for host in kafka_hosts:
        if not settings.auth_tokens and kafka_login_required(settings, host):
            return (
                f"Kafka clients have to log in at {host} with oci.auth=verify, and there are no tokens: "
                "add --set oci.auth.tokens=FILE, or listen on loopback with --set oci.auth.kafka=optional"
            )
    return None


def kafka_login_required(settings: OciSettings, kafka_host: str) -> bool:
    """Return whether Kafka clients must log in at a listener without its own SASL."""
    if settings.closed:
        return False
    if settings.auth_kafka == "auto":
        return settings.auth == "verify" and not is_loopback(kafka_host)
    return settings.auth_kafka == "required"
