"""The `kafka.*` options: brokers and login, with the names of Kafka's clients.

`kafka.properties.file` names a file of them, like `--command-config` of Kafka's tools.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from headrace.client.errors import OptionError

PROPERTIES_FILE: Final = "properties.file"
"""Option after `kafka.` that names a file of settings."""
_PAIR: Final = re.compile(r"(?P<name>(?:\\.|[^\\=:\s])+)\s*[=:]?\s*(?P<value>.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: str) -> dict[str, str]:
    """Parse a java.util.Properties file. Raises OptionError, without the content."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError(f"'kafka.{PROPERTIES_FILE}' {Path(path).absolute()} cannot be read: {reason}") from None
    found = {}
    for line in _property_lines(text):
        pair = _PAIR.fullmatch(line)
        if pair is not None:
            found[_plain(pair["name"])] = _plain(pair["value"])
    return found


def write_properties(settings: dict[str, str]) -> str:
    """Return the format of java.util.Properties."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _property_lines(text: str) -> list[str]:
    """An odd number of backslashes at the end continues a line."""
    lines: list[str] = []
    going_on = False
    for raw in text.splitlines():
        line = raw.lstrip()
        if not going_on and (not line or line[0] in "#!"):
            continue
        open_ = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        part = line[:-1] if open_ else line
        if going_on:
            lines[-1] += part
        else:
            lines.append(part)
        going_on = open_
    return lines


def _plain(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        one = found[1]
        return chr(int(one[1:], 16)) if len(one) == 5 else _LETTERS.get(one, one)

    return _ESCAPED.sub(letter, text)


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{value}" if value[:1].isspace() else value


PREFIX: Final = "kafka."
SERVERS: Final = PREFIX + "bootstrap.servers"
ISOLATION: Final = PREFIX + "isolation.level"
PROPERTIES: Final = PREFIX + PROPERTIES_FILE
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_USED: Final = frozenset(
    (
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.jwt.retriever.class",
        TOKEN_URL,
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "client.id",
        "isolation.level",
        "request.timeout.ms",
        "acks",
        "compression.type",
        "batch.size",
        "max.request.size",
        "transaction.timeout.ms",
    )
)
_WITHOUT_MEANING: Final = frozenset(
    (
        # Without effect, accepted so that jobs for Spark's Kafka source keep running.
        "group.id",
        "max.poll.records",
        "max.poll.interval.ms",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "fetch.min.bytes",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "max.partition.fetch.bytes",
        "check.crcs",
        "metadata.max.age.ms",
        "connections.max.idle.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.ms",
        "default.api.timeout.ms",
        "linger.ms",
        "buffer.memory",
        "max.block.ms",
        "delivery.timeout.ms",
        "retries",
        "enable.idempotence",
        "max.in.flight.requests.per.connection",
        "ssl.enabled.protocols",
        "ssl.protocol",
        "allow.auto.create.topics",
        "client.dns.lookup",
        "client.rack",
        "exclude.internal.topics",
        "group.instance.id",
        "metric.reporters",
        "partition.assignment.strategy",
    )
)
_REFUSED: Final = {
    "auto.offset.reset": "set 'startingOffsets' instead",
    "enable.auto.commit": "set 'consumerGroup' to have positions committed",
    "key.deserializer": "keys are binary columns: cast them",
    "value.deserializer": "values are binary columns: cast them",
    "key.serializer": "keys are binary or string columns",
    "value.serializer": "values are binary or string columns",
    "interceptor.classes": "there is no JVM client to intercept",
    "sasl.kerberos.service.name": "Kerberos is not spoken; SASL mechanisms are PLAIN, SCRAM and OAUTHBEARER",
    "ssl.keystore.password": "give PEM, whose key may have 'kafka.ssl.key.password'",
    "ssl.truststore.password": "give PEM, which has none, and set kafka.ssl.truststore.type=PEM",
}
_HANDLER: Final = "OAuthBearerLoginCallbackHandler"
_RETRIEVER: Final = "FileJwtRetriever"
_JAAS: Final = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """A cluster's addresses and credentials. Sent to executors, where equal options share a connection."""

    servers: tuple[tuple[str, int], ...]
    tls: bool = False
    verify_host: bool = True
    authorities: str | None = field(default=None, repr=False)
    """PEM text of trusted certificates; None: the system's."""
    certificate: str | None = field(default=None, repr=False)
    """PEM text of the client's certificate chain and key."""
    key_password: str | None = field(default=None, repr=False)
    mechanism: str | None = None
    """SASL mechanism; None: no login."""
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: str | None = None
    """File with the OAUTHBEARER token, read for each connection on the machine that connects."""
    client_id: str = "headrace-spark"
    read_committed: bool = False
    timeout_s: float = 30.0
    acks: int = -1
    codec: int = 4
    """Compression of written batches."""
    batch_bytes: int = 1 << 20
    """Maximum size of a written batch in bytes, except for a larger single record."""
    transaction_timeout_ms: int | None = None
    """None: 15 minutes, or the server's maximum if that is lower."""

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.servers)


def parse(given: Mapping[str, str]) -> ClientOptions | None:
    """Return the `kafka.` options of `given`, with names in lower case, or None without `kafka.bootstrap.servers`.

    They override the file `kafka.properties.file`. Raises OptionError, also for a JKS file.
    """
    kafka = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    path = kafka.pop(PROPERTIES_FILE, None)
    for name in kafka:
        _check_name(name)
    if path is not None:
        kafka = _of_file(path) | kafka
    if "bootstrap.servers" not in kafka:
        if kafka:
            raise OptionError(f"option 'kafka.{min(kafka)}' needs 'kafka.bootstrap.servers' as well")
        return None
    protocol = _choice(kafka, "security.protocol", _PROTOCOLS, "PLAINTEXT")
    login = _login(kafka) if protocol.startswith("SASL") else {}
    tls = protocol.endswith("SSL")
    return ClientOptions(
        servers=_servers(kafka["bootstrap.servers"]),
        tls=tls,
        verify_host=kafka.get("ssl.endpoint.identification.algorithm", "https").strip().lower() == "https",
        authorities=_pem(kafka, "truststore", ("ssl.truststore.certificates",)) if tls else None,
        certificate=_pem(kafka, "keystore", ("ssl.keystore.key", "ssl.keystore.certificate.chain")) if tls else None,
        key_password=kafka.get("ssl.key.password"),
        **login,
        client_id=kafka.get("client.id", "headrace-spark"),
        read_committed=is_read_committed(kafka),
        timeout_s=_number(kafka, "request.timeout.ms", 30_000) / 1000,
        acks={"ALL": -1, "-1": -1, "1": 1}[_choice(kafka, "acks", ("ALL", "-1", "1"), "ALL")],
        codec=CODECS[_choice(kafka, "compression.type", tuple(name.upper() for name in CODECS), "ZSTD").lower()],
        batch_bytes=min(_number(kafka, "batch.size", 1 << 20), _number(kafka, "max.request.size", 1 << 20)),
        transaction_timeout_ms=(
            _number(kafka, "transaction.timeout.ms", 0) if "transaction.timeout.ms" in kafka else None
        ),
    )


def is_read_committed(kafka: Mapping[str, str]) -> bool:
    """Return whether `isolation.level` is read_committed, in options without `kafka.`. Raises OptionError."""
    levels = ("READ_UNCOMMITTED", "READ_COMMITTED")
    return _choice(kafka, "isolation.level", levels, levels[0]) == levels[1]


def plain_login(username: str | None, password: str, ca: str | None) -> dict[str, str]:
    """Return options, without `kafka.`, for SASL PLAIN, over TLS if `ca` is given."""
    settings = {"security.protocol": ("SASL_" if username else "") + ("SSL" if ca else "PLAINTEXT")}
    if username:
        quoted = [re.sub(r'([\\"])', r"\\\1", text) for text in (username, password)]
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        settings["sasl.mechanism"] = "PLAIN"
        settings["sasl.jaas.config"] = f'{module} required username="{quoted[0]}" password="{quoted[1]}";'
    if ca:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(Path(ca).absolute())}
    return settings


def _of_file(path: str) -> dict[str, str]:
    settings = read_properties(path)
    for name in settings:
        try:
            _check_name(name)
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from None
    return settings


def _check_name(name: str) -> None:
    if name in _REFUSED:
        raise OptionError(f"option 'kafka.{name}' cannot be set: {_REFUSED[name]}")
    if name not in _USED | _WITHOUT_MEANING:
        near = get_close_matches(name, sorted({*_USED, *_WITHOUT_MEANING, PROPERTIES_FILE}), n=1)
        hint = f"; did you mean 'kafka.{near[0]}'?" if near else ""
        raise OptionError(f"unknown option 'kafka.{name}' of format 'headrace'{hint}")


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    servers = []
    for part in text.split(","):
        found = _ADDRESS.fullmatch(part.strip())
        if found is None or int(found["port"]) > 65535:
            raise OptionError(f"option 'kafka.bootstrap.servers' must be HOST:PORT,HOST:PORT,... not {text!r}")
        servers.append((found["six"] or found["host"], int(found["port"])))
    return tuple(servers)


def _login(kafka: Mapping[str, str]) -> dict[str, str]:
    mechanism = kafka.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in MECHANISMS:
        raise OptionError(f"option 'kafka.sasl.mechanism' must be one of {', '.join(MECHANISMS)}, not {mechanism}")
    jaas = kafka.get("sasl.jaas.config")
    if mechanism == "OAUTHBEARER":
        return {"mechanism": mechanism, "token_file": _token_file(kafka, jaas or "")}
    wanted = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    if not jaas:
        raise OptionError(
            f'SASL needs option \'kafka.sasl.jaas.config\': {wanted} required username="..." password="...";'
        )
    if wanted not in jaas.partition(" ")[0]:
        raise OptionError(f"option 'kafka.sasl.jaas.config' must name {wanted} for {mechanism}")
    values = {
        name: re.sub(r"\\(.)", r"\1", double or single or bare) for name, double, single, bare in _JAAS.findall(jaas)
    }
    missing = [name for name in ("username", "password") if name not in values]
    if missing:
        raise OptionError(f"option 'kafka.sasl.jaas.config' has no {' and no '.join(missing)}")
    return {"mechanism": mechanism, "username": values["username"], "password": values["password"]}


def _token_file(kafka: Mapping[str, str], jaas: str) -> str:
    """Return a token file's path, from the settings of Kafka's FileJwtRetriever (KIP-768, KIP-1139)."""
    for name, text, class_name in (
        ("sasl.jaas.config", jaas, "OAuthBearerLoginModule"),
        ("sasl.login.callback.handler.class", kafka.get("sasl.login.callback.handler.class", ""), _HANDLER),
        ("sasl.oauthbearer.jwt.retriever.class", kafka.get("sasl.oauthbearer.jwt.retriever.class", ""), _RETRIEVER),
    ):
        # The login module only repeats it.
        if text.strip() and text.split(maxsplit=1)[0].rstrip(";").rpartition(".")[2] != class_name:
            raise OptionError(f"option 'kafka.{name}' must name {class_name} for OAUTHBEARER: tokens come from a file")
    if "unsecuredLogin" in jaas:
        raise OptionError("option 'kafka.sasl.jaas.config': servers refuse unsigned tokens")
    url = urlsplit(kafka.get(TOKEN_URL, "").strip())
    if url.scheme != "file" or url.netloc not in {"", "localhost"} or not url.path.startswith("/"):
        raise OptionError(
            f"OAUTHBEARER needs option 'kafka.{TOKEN_URL}': file:///PATH of a token that another program renews; "
            "no other address is asked for one"
        )
    return unquote(url.path)


def _pem(kafka: Mapping[str, str], store: str, inline: tuple[str, ...]) -> str | None:
    texts = [kafka[name] for name in inline if name in kafka]
    location = kafka.get(f"ssl.{store}.location")
    if not texts and location is None:
        return None
    kind = kafka.get(f"ssl.{store}.type", "JKS").strip().upper()
    if kind != "PEM":
        raise OptionError(
            f"'kafka.ssl.{store}.type' is {kind}, which only a JVM reads: give PEM, and set kafka.ssl.{store}.type=PEM"
        )
    if texts:
        # Kafka accepts PEM on one line, with spaces for line breaks.
        return "\n".join(_lines(text) for text in texts)
    try:
        return Path(str(location)).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text, so not PEM"
        raise OptionError(f"'kafka.ssl.{store}.location' {location} cannot be read: {reason}") from None


def _lines(text: str) -> str:
    if "\n" in text.strip():
        return text
    blocks = re.findall(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", text)
    return "\n".join(
        "\n".join((f"-----BEGIN {kind}-----", *body.split(), f"-----END {kind}-----")) for kind, body in blocks
    )


def _choice(kafka: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = kafka.get(name, default).strip().upper()
    if value not in allowed:
        options = ", ".join(one.lower() if name != "security.protocol" else one for one in allowed)
        raise OptionError(f"option 'kafka.{name}' must be one of {options}, not {kafka[name]!r}")
    return value


def _number(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise OptionError(f"option 'kafka.{name}' must be a whole number above 0, not {text!r}")
    return int(text)
