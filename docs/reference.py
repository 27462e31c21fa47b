"""Entries of generated reference pages: settings, operations of the OCI API, and Python objects."""

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from headrace.topics.config_keys import ConfigKey, ConfigType

EXAMPLES = {
    "consumer.assignment.interval.ms": "1000",
    "consumer.session.timeout.ms": "50000",
    "group.consumer.assignment.interval.ms": "1000",
    "group.consumer.assignors": "range,uniform",
    "group.consumer.migration.policy": "upgrade",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "50000",
    "group.share.assignment.interval.ms": "1000",
    "group.share.min.delivery.count.limit": "3",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.min.session.timeout.ms": "10000",
    "group.share.session.timeout.ms": "50000",
    "share.assignment.interval.ms": "1000",
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "20000",
    "share.session.timeout.ms": "50000",
    "advertised.listeners": "PLAINTEXT://broker.example.org:9092",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "broker.id": "2",
    "headrace.adopt.prefixes": "readings:",
    "group.initial.rebalance.delay.ms": "3000",
    "headrace.cache.bytes": "268435456",
    "headrace.http.hosts": "streaming.example.org",
    "headrace.stream.prefix": "records",
    "headrace.traces.endpoint": "http://127.0.0.1:4318",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL",
    "listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093",
    "local.retention.bytes": "1073741824",
    "local.retention.ms": "3600000",
    "log.cleaner.io.max.bytes.per.second": "10485760",
    "log.cleaner.max.compaction.lag.ms": "86400000",
    "log.cleaner.min.cleanable.ratio": "0.2",
    "log.message.timestamp.before.max.ms": "86400000",
    "log.retention.bytes": "1073741824",
    "log.retention.hours": "24",
    "log.retention.minutes": "90",
    "log.retention.ms": "3600000",
    "max.compaction.lag.ms": "86400000",
    "max.connection.creation.rate": "100",
    "max.connections": "1000",
    "max.connections.per.ip": "100",
    "message.timestamp.before.max.ms": "86400000",
    "min.cleanable.dirty.ratio": "0.2",
    "min.insync.replicas": "2",
    "num.partitions": "6",
    "oci.auth": "verify",
    "oci.auth.kafka": "required",
    "oci.auth.keys": "/etc/headrace/keys",
    "oci.auth.tokens": "/etc/headrace/tokens",
    "oci.faults": "PutMessages:429*3",
    "oci.lifecycle.delay.ms": "5000",
    "oci.messages.endpoint": "https://streaming.example.org",
    "oci.partitions.max": "50",
    "oci.region": "eu-frankfurt-1",
    "retention.bytes": "1073741824",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.oauthbearer.expected.audience": "headrace",
    "sasl.oauthbearer.expected.issuer": "https://login.example.org",
    "sasl.oauthbearer.jwks.endpoint.url": "https://login.example.org/keys",
    "sasl.oauthbearer.sub.claim.name": "client_id",
    "ssl.keystore.location": "/etc/headrace/server.pem",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
    "ssl.truststore.location": "/etc/headrace/clients.pem",
    "super.users": "User:admin",
    "connections.max.reauth.ms": "3600000",
}
"""Values of settings for which no rule makes a good example."""


def example(key: ConfigKey) -> str:
    """Return a value that the key accepts, other than its default where there is another."""
    text = EXAMPLES.get(key.name, "")
    default = key.default or ""
    if not text and key.choices:
        text = next((each for each in reversed(key.choices) if each not in default.split(",")), key.choices[0])
    elif not text and key.type is ConfigType.BOOLEAN:
        text = "false" if default == "true" else "true"
    elif not text and key.type is not ConfigType.STRING and key.type is not ConfigType.LIST:
        doubled = max(2 * int(default or 1), 1)
        text = str(int(min(doubled, key.maximum)) if key.maximum is not None else doubled)
    key.parse(text)
    return text


def setting(key: ConfigKey, option: str, takes: str) -> list[str]:
    """Return the lines of a setting, with a heading that pages can link to.

    Args:
        key: the setting.
        option: the option of a command that sets it.
        takes: the values that it accepts, if they are restricted.
    """
    default = "not set" if key.default is None else f"`{key.default}`" if key.default else "empty"
    facts = [f"Type: {key.type.name.lower()}", f"default: {default}", *([f"values: {takes}"] if takes else [])]
    value = example(key)
    shown = [f"Example: `{option} {key.name}={value}`", ""] if value else []
    return [f"### `{key.name}`", "", key.doc, "", f"{'; '.join(facts)}.", "", *shown]


def operation(name: str, description: Mapping[str, Any]) -> list[str]:
    """Return the parameters, the body and the response of an operation, from the OpenAPI description."""
    found = next(
        each for path in description["paths"].values() for each in path.values() if each["operationId"] == name
    )
    lines = []
    if found["parameters"]:
        lines += ["", "| parameter | in | type |", "| --- | --- | --- |"]
        for each in found["parameters"]:
            required = ", required" if each["required"] else ""
            lines.append(f"| `{each['name']}` | {each['in']} | {_type(each['schema'])}{required} |")
    if "requestBody" in found:
        schema = found["requestBody"]["content"]["application/json"]["schema"]
        lines += ["", f"Body: {_type(schema)}."]
    for status, response in found["responses"].items():
        if status.startswith("2"):
            content = response.get("content", {}).get("application/json")
            headers = ", ".join(f"`{header}`" for header in response.get("headers", ()))
            body = f" {_type(content['schema'])}." if content else " No body."
            lines += ["", f"Response {status}:{body} Headers: {headers}."]
    return lines


def schemas(description: Mapping[str, Any]) -> Iterator[str]:
    """Yield a section with a table of fields for each schema."""
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield f"### {name}"
        yield from _fields(schema)
        yield ""


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if not schema.get("properties"):
        yield f"{_type(schema).capitalize()}."
        return
    yield from ("| field | type |", "| --- | --- |")
    for field, each in schema["properties"].items():
        required = ", required" if field in schema.get("required", ()) else ""
        yield f"| `{field}` | {_type(each)}{required} |"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in a few words, without the null that every optional value accepts."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if kind == "object" and "additionalProperties" in schema:
        return f"object of {_type(schema['additionalProperties'])}"
    return kind + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return f" ({', '.join(f'`{each}`' for each in schema['enum'])})"
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    return f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""


def python(module: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the sections of a module's public names, from signatures and docstrings."""
    imported: ModuleType = importlib.import_module(module)
    for name in names:
        found = getattr(imported, name)
        yield f"### {module}.{name}"
        yield ""
        yield from _object(name, found)
        if inspect.isclass(found):
            for member, each in _members(found):
                yield f"#### {name}.{member}"
                yield ""
                yield from _object(member, each)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, each in vars(kind).items():
        plain = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)) and plain.__doc__:
            yield name, plain


def _object(name: str, found: Any) -> Iterator[str]:
    target = getattr(found, "__wrapped__", found)
    if not isinstance(found, property) and not (inspect.isclass(found) and issubclass(found, Exception)):
        yield from ("```python", name + _signature(target), "```", "")
    yield from docstring(inspect.getdoc(found) or "")
    if inspect.isclass(found) and "__init__" in vars(found):
        yield from docstring((inspect.getdoc(found.__init__) or "").partition("\n\n")[2])


def _signature(target: Any) -> str:
    """Return the signature, with the names of types only."""
    text = re.sub(r"\((?:self|cls)(?:, )?", "(", str(inspect.signature(target)), count=1)
    text = re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", text)


def docstring(text: str) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown: sections such as Args become lists."""
    inside = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Raises|Yields|Returns):", line):
            inside = True
            yield f"**{line[:-1]}**"
            yield ""
        elif inside and line.startswith("    ") and not line.startswith("     "):
            word, colon, rest = line.strip().partition(":")
            yield f"- `{word}`:{rest}" if colon else f"- {word}"
        else:
            inside = inside and (not line or line.startswith(" "))
            yield f"  {line.strip()}" if inside and line else line
    yield ""
