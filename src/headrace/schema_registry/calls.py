"""One request of the registry's API, and the ACLs that it needs.

A subject belongs to the topic that it is named after: `orders-value` and `orders-key` to `orders`, and every other
subject to a topic of its own name (decision 90).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from headrace.broker.admin.acl_authorizer import AclAuthorizer
from headrace.schema_registry.registry import MOST_REFERENCES, Given, Registry
from headrace.schemas.errors import InvalidSchema, RegistryError
from headrace.schemas.model import Reference, Version
from headrace.schemas.subjects import Subjects
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import CLUSTER_NAME, SERVER, Operation, ResourceType, Rule

B = TypeVar("B")

_MOST_PARAMETERS: Final = 50
_LONGEST_SUBJECT: Final = 500
_LONGEST_EMPTY: Final = 1_000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def _rule(operation: Operation, kind: ResourceType) -> Rule:
    return Rule(operation=operation, type=kind, resources=lambda: ())


DESCRIBE: Final = _rule(Operation.DESCRIBE, ResourceType.TOPIC)
WRITE: Final = _rule(Operation.WRITE, ResourceType.TOPIC)
DELETE: Final = _rule(Operation.DELETE, ResourceType.TOPIC)
DESCRIBE_CONFIGS: Final = _rule(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
ALTER_CONFIGS: Final = _rule(Operation.ALTER_CONFIGS, ResourceType.TOPIC)
DESCRIBE_CLUSTER_CONFIGS: Final = _rule(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CLUSTER_CONFIGS: Final = _rule(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)


def topic_of(subject: str) -> str:
    """Return the topic whose ACLs apply to a subject."""
    for ending in ("-key", "-value"):
        if subject.endswith(ending) and len(subject) > len(ending):
            return subject.removesuffix(ending)
    return subject


class SchemaBody(msgspec.Struct, rename="camel"):
    """The body of requests with a schema."""

    schema: str | None = None
    schema_type: str | None = None
    references: list[Reference] | None = None
    id: int | None = None
    version: int | None = None
    metadata: msgspec.Raw = msgspec.Raw()
    rule_set: msgspec.Raw = msgspec.Raw()
    schema_tags_to_add: msgspec.Raw = msgspec.Raw()
    schema_tags_to_remove: msgspec.Raw = msgspec.Raw()


class Call:
    """One request."""

    def __init__(
        self,
        registry: Registry,
        access: AclAuthorizer,
        principal: Principal,
        host: str,
        path: Mapping[str, str],
        query: bytes,
        body: bytes,
    ) -> None:
        """Parse the query. Raises RegistryError."""
        self.registry = registry
        self.path = path
        self._access = access
        self._principal = principal
        self._host = host
        self._body = body
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            raise RegistryError(400, 400, "The query cannot be read") from None
        self._query = dict(pairs)

    @property
    def index(self) -> Subjects:
        """Return subjects and versions as they are now."""
        return self.registry.index

    # Parameters

    def text(self, name: str, default: str = "") -> str:
        """Return a query parameter."""
        return self._query.get(name, default)

    def flag(self, name: str) -> bool:
        """Return whether a query parameter is true."""
        return self.text(name).lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a query parameter that is a whole number. Raises RegistryError."""
        found = self.text(name)
        if not found:
            return default
        return self._integer(found, name)

    @staticmethod
    def _integer(text: str, name: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,10}", text, re.ASCII) is None:
            raise RegistryError(404, 404, f"HTTP 404 Not Found: {name} is not a whole number: {text[:40]!r}")
        return int(text)

    @property
    def id(self) -> int:
        """Return the ID in the path. Raises RegistryError."""
        return self._integer(self.path["id"], "the ID")

    @property
    def subject(self) -> str:
        """Return the subject in the path. Raises RegistryError."""
        return checked_subject(self.path["subject"])

    def page(self, found: list[B]) -> list[B]:
        """Return the part of a list that `offset` and `limit` name."""
        offset, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return found[offset:] if limit < 0 else found[offset : offset + limit]

    def body(self, kind: type[B]) -> B:
        """Return the decoded body. Raises RegistryError."""
        try:
            return msgspec.json.decode(self._body, type=kind)
        except msgspec.ValidationError as error:
            raise RegistryError(422, 422, f"Invalid request body: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryError(400, 400, f"Invalid request body: it is not JSON: {error}") from None

    def schema(self) -> tuple[Given, SchemaBody]:
        """Return the schema in the body. Raises RegistryError."""
        body = self.body(SchemaBody)
        if is_given(body.rule_set):
            raise RegistryError(422, 42210, "Rule sets are not supported: register the schema without ruleSet")
        for name, value in (("metadata", body.metadata), ("schemaTagsToAdd", body.schema_tags_to_add),
                            ("schemaTagsToRemove", body.schema_tags_to_remove)):  # fmt: skip
            if is_given(value):
                raise InvalidSchema(f"{name} is not supported: register the schema without it")
        if len(body.references or ()) > MOST_REFERENCES:
            raise InvalidSchema(f"The schema refers to more than {MOST_REFERENCES} schemas")
        for one in body.references or ():
            checked_subject(one.subject)
            if not one.name:
                raise InvalidSchema("Invalid reference: its name is empty")
        references = tuple(body.references or ())
        return Given(body.schema or "", body.schema_type or "AVRO", references), body

    # Rights

    def may(self, rule: Rule, subject: str = "") -> bool:
        """Return whether the client may do something to a subject, or to the registry (empty)."""
        grants = self._access.grants(self._principal, self._host, SERVER)
        return grants is None or grants.allow(rule, topic_of(subject) if subject else CLUSTER_NAME)

    def need(self, rule: Rule, subject: str = "") -> None:
        """Raise RegistryError 403 if the client may not do something."""
        if self.may(rule, subject):
            return
        kind = f"{rule.operation.value} {rule.type.value}"
        name = topic_of(subject) if subject else CLUSTER_NAME
        what = f"{self._principal} may not {kind} {name}"
        self._access.audit.refused(str(self._principal), self._host, kind, what)
        raise RegistryError(403, 40301, f"{what}: grant it with headrace acls add")

    def visible(self, versions: Iterable[Version]) -> list[Version]:
        """Return the versions that the client may see."""
        return [one for one in versions if self.may(DESCRIBE, one.subject)]

    def changed(self, operation: str, what: str) -> None:
        """Log a change."""
        self._access.audit.changed(str(self._principal), self._host, operation, what)


Handler = Callable[[Call], Any]


def is_given(value: msgspec.Raw) -> bool:
    """Return whether a part of a body that is not supported has contents. Long ones are not decoded."""
    if len(bytes(value)) > _LONGEST_EMPTY:
        return True
    found = msgspec.json.decode(value) if bytes(value) else None
    return any(found.values()) if isinstance(found, dict) else bool(found)


def checked_subject(subject: str) -> str:
    """Return a valid subject. Raises RegistryError."""
    if subject.startswith(":."):
        raise RegistryError(422, 42208, f"Contexts are not supported: {subject[:100]!r} is in one")
    wrong = _CONTROL.search(subject) or subject in {"__GLOBAL", "__EMPTY"} or len(subject) > _LONGEST_SUBJECT
    if wrong or not subject:
        raise RegistryError(
            422, 42208, f"The specified subject {subject[:100]!r} is not a valid subject: it must have 1 to "
            f"{_LONGEST_SUBJECT} characters, without control characters"
        )  # fmt: skip
    return subject
