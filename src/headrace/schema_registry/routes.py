"""The routes of the registry's API.

Source: Confluent's documentation, "Schema Registry API Reference".
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from headrace import __version__
from headrace.schema_registry import calls
from headrace.schema_registry.calls import Call
from headrace.schemas import protobuf
from headrace.schemas.errors import RegistryError, schema_not_found, subject_not_found
from headrace.schemas.model import TYPES, Level, Mode, Reference, Schema, Version

Handler = Callable[[Call], Awaitable[Any]]
ROUTES: Final[dict[tuple[str, str], Handler]] = {}
"""(method, path pattern) -> handler."""
FORMATS: Final = {"", "default", "serialized"}


class Text(msgspec.Struct, frozen=True):
    """A response that is a schema's text itself."""

    text: str


def route(method: str, pattern: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        ROUTES[method, pattern] = handler
        return handler

    return register


# Responses


def _text(call: Call, schema: Schema) -> str:
    wanted = call.text("format")
    if wanted == "serialized" and schema.type == "PROTOBUF":
        return protobuf.serialized(schema.descriptor)
    if wanted not in FORMATS and not (wanted == "resolved" and not schema.references):
        known = ", ".join(sorted(FORMATS - {""}))
        raise RegistryError(422, 42205, f"The format {wanted[:40]!r} is not supported; supported: {known}")
    return schema.text


def _references(found: tuple[Reference, ...]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(one) for one in found]


def _described(call: Call, version: Version, schema: Schema) -> dict[str, Any]:
    """Return a version with its schema. As Confluent's registry, it leaves out the type of Avro schemas."""
    told: dict[str, Any] = {"subject": version.subject, "version": version.version, "id": version.id}
    told["guid"] = version.guid
    return told | _content(call, schema) | ({"deleted": True} if version.deleted else {})


def _content(call: Call, schema: Schema) -> dict[str, Any]:
    told: dict[str, Any] = {} if schema.type == "AVRO" else {"schemaType": schema.type}
    if schema.references:
        told["references"] = _references(schema.references)
    return told | {"schema": _text(call, schema)}


async def _schema(call: Call, version: Version) -> Schema:
    (found,) = await call.registry.store.schemas([version])
    return found


# Schemas


@route("GET", "/")
async def root(_: Call) -> Any:
    """Answer clients that test the URL."""
    return {}


@route("GET", "/schemas/types")
async def types(_: Call) -> Any:
    """List the supported types."""
    return list(TYPES)


@route("GET", "/schemas")
async def schemas(call: Call) -> Any:
    """List versions with their schemas."""
    prefix, deleted = call.text("subjectPrefix"), call.flag("deleted")
    every: list[Version] = []
    for name in call.index.names(deleted=deleted):
        if name.startswith(prefix) and call.may(calls.DESCRIBE, name):
            found = call.index.versions(name, deleted=deleted)
            every += found[-1:] if call.flag("latestOnly") else found
    limit = call.number("limit", -1)
    chosen = call.page(every)[: _MOST_LISTED if limit < 0 else limit][:_MOST_LISTED]
    texts = await call.registry.store.schemas(chosen)
    return [_described(call, one, schema) for one, schema in zip(chosen, texts, strict=True)]


_MOST_LISTED: Final = 1_000
"""Maximum schemas of one response."""


def _by_id(call: Call, number: int) -> list[Version]:
    """Return the versions with an ID that the client may see. Raises RegistryError."""
    found = call.visible(call.index.by_id(number))
    if call.text("subject"):
        subject = calls.checked_subject(call.text("subject"))
        # As Confluent's registry, fall back to other subjects: clients send the subject of the topic that they read.
        found = [one for one in found if one.subject == subject] or found
    if not found:
        raise schema_not_found(number)
    return found


@route("GET", "/schemas/ids/{id}")
async def schema_by_id(call: Call) -> Any:
    """Return the schema of an ID."""
    version = _by_id(call, call.id)[0]
    told = _content(call, await _schema(call, version)) | {"guid": version.guid}
    if call.flag("fetchMaxId"):
        told["maxId"] = call.index.next_id - 1
    return told


@route("GET", "/schemas/ids/{id}/schema")
async def text_by_id(call: Call) -> Any:
    """Return the text of the schema of an ID."""
    return Text(_text(call, await _schema(call, _by_id(call, call.id)[0])))


@route("GET", "/schemas/ids/{id}/subjects")
async def subjects_by_id(call: Call) -> Any:
    """List the subjects with an ID."""
    deleted = call.flag("deleted")
    return call.page(sorted({one.subject for one in _by_id(call, call.id) if deleted or not one.deleted}))


@route("GET", "/schemas/ids/{id}/versions")
async def versions_by_id(call: Call) -> Any:
    """List the versions with an ID."""
    found = [one for one in _by_id(call, call.id) if call.flag("deleted") or not one.deleted]
    return call.page([{"subject": one.subject, "version": one.version} for one in found])


def _by_guid(call: Call) -> Version:
    guid = call.path["guid"]
    number = call.index.id_of(guid.lower())
    found = [] if number is None else call.visible(call.index.by_id(number))
    if not found:
        raise schema_not_found(guid[:40])
    return found[0]


@route("GET", "/schemas/guids/{guid}")
async def schema_by_guid(call: Call) -> Any:
    """Return the schema of a GUID."""
    version = _by_guid(call)
    return _content(call, await _schema(call, version)) | {"guid": version.guid}


@route("GET", "/schemas/guids/{guid}/ids")
async def ids_by_guid(call: Call) -> Any:
    """List the IDs of a GUID."""
    return [{"context": ".", "id": _by_guid(call).id}]


# Subjects


@route("GET", "/subjects")
async def subjects(call: Call) -> Any:
    """List subjects."""
    prefix = call.text("subjectPrefix")
    if prefix.startswith(":.") and prefix != ":*:":
        calls.checked_subject(prefix)
    prefix = "" if prefix == ":*:" else prefix
    live = set(call.index.names())
    names = call.index.names(deleted=call.flag("deleted") or call.flag("deletedOnly"))
    found = [one for one in names if one.startswith(prefix) and call.may(calls.DESCRIBE, one)]
    return call.page([one for one in found if not (call.flag("deletedOnly") and one in live)])


@route("POST", "/subjects/{subject}")
async def lookup(call: Call) -> Any:
    """Return the version of a subject with a schema."""
    call.need(calls.DESCRIBE, call.subject)
    given = _given(call)
    version = await call.registry.lookup(call.subject, given, deleted=call.flag("deleted"))
    return _described(call, version, await _schema(call, version))


def _given(call: Call) -> Any:
    given, _ = call.schema()
    return _allowed(call, given)


def _allowed(call: Call, given: Any) -> Any:
    for one in given.references:
        call.need(calls.DESCRIBE, one.subject)
    normalize = call.flag("normalize") or call.index.normalizes(call.path["subject"])
    return msgspec.structs.replace(given, normalize=normalize)


@route("DELETE", "/subjects/{subject}")
async def delete_subject(call: Call) -> Any:
    """Delete a subject."""
    call.need(calls.DELETE, call.subject)
    found = await call.registry.delete_subject(call.subject, permanent=call.flag("permanent"))
    call.changed("DeleteSubject", call.subject)
    return found


@route("GET", "/subjects/{subject}/versions")
async def versions(call: Call) -> Any:
    """List the versions of a subject."""
    call.need(calls.DESCRIBE, call.subject)
    only = call.flag("deletedOnly")
    found = call.index.existing(call.subject, deleted=call.flag("deleted") or only)
    return call.page([one.version for one in found if one.deleted or not only])


@route("POST", "/subjects/{subject}/versions")
async def register(call: Call) -> Any:
    """Register a schema."""
    call.need(calls.WRITE, call.subject)
    given, body = call.schema()
    number = -1 if body.id is None else body.id
    at = -1 if body.version is None else body.version
    if not -1 <= number < 1 << 31 or not -1 <= at < 1 << 31:
        raise RegistryError(422, 42202, "The ID or version is not between 1 and 2^31-1")
    version = await call.registry.register(call.subject, _allowed(call, given), number or -1, at)
    return {"id": version.id, "version": version.version, "guid": version.guid}


def _version(call: Call, *, deleted: bool) -> Version:
    call.need(calls.DESCRIBE, call.subject)
    return call.index.find(call.subject, call.path["version"], deleted=deleted)


@route("GET", "/subjects/{subject}/versions/{version}")
async def version(call: Call) -> Any:
    """Return a version with its schema."""
    found = _version(call, deleted=call.flag("deleted"))
    return _described(call, found, await _schema(call, found))


@route("GET", "/subjects/{subject}/versions/{version}/schema")
async def version_text(call: Call) -> Any:
    """Return the text of a version."""
    return Text(_text(call, await _schema(call, _version(call, deleted=call.flag("deleted")))))


@route("GET", "/subjects/{subject}/versions/{version}/referencedby")
async def referenced_by(call: Call) -> Any:
    """List the IDs of schemas that refer to a version."""
    found = _version(call, deleted=True)
    users = call.visible(one for one in call.index.users(found.subject, found.version) if not one.deleted)
    return call.page(sorted({one.id for one in users}))


@route("DELETE", "/subjects/{subject}/versions/{version}")
async def delete_version(call: Call) -> Any:
    """Delete a version."""
    call.need(calls.DELETE, call.subject)
    found = await call.registry.delete_version(call.subject, call.path["version"], permanent=call.flag("permanent"))
    call.changed("DeleteSchemaVersion", f"{call.subject} {found}")
    return found


# Compatibility


async def _compatibility(call: Call, version: str | None) -> Any:
    call.need(calls.DESCRIBE, call.subject)
    found = await call.registry.compatibility(call.subject, _given(call), version)
    return {"is_compatible": not found} | ({"messages": found} if call.flag("verbose") else {})


@route("POST", "/compatibility/subjects/{subject}/versions/{version}")
async def compatible(call: Call) -> Any:
    """Return whether a schema is compatible with a version."""
    return await _compatibility(call, call.path["version"])


@route("POST", "/compatibility/subjects/{subject}/versions")
async def compatible_with_all(call: Call) -> Any:
    """Return whether a schema is compatible with the versions that the level names."""
    return await _compatibility(call, None)


# Settings


class ConfigBody(msgspec.Struct, rename="camel"):
    """The body of requests that change a compatibility level."""

    compatibility: str | None = None
    normalize: bool | None = None
    alias: msgspec.Raw = msgspec.Raw()
    compatibility_group: msgspec.Raw = msgspec.Raw()
    default_metadata: msgspec.Raw = msgspec.Raw()
    override_metadata: msgspec.Raw = msgspec.Raw()
    default_rule_set: msgspec.Raw = msgspec.Raw()
    override_rule_set: msgspec.Raw = msgspec.Raw()


class ModeBody(msgspec.Struct):
    """The body of requests that change a mode."""

    mode: str


def _config(call: Call, subject: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if (level := call.index.setting("compatibility", subject)) is not None:
        told["compatibilityLevel"] = level
    if (normalize := call.index.setting("normalize", subject)) is not None:
        told["normalize"] = normalize == "true"
    return told


@route("GET", "/config")
async def config(call: Call) -> Any:
    """Return the registry's compatibility level."""
    call.need(calls.DESCRIBE_CLUSTER_CONFIGS)
    return {"compatibilityLevel": Level.BACKWARD.value} | _config(call, "")


@route("GET", "/config/{subject}")
async def subject_config(call: Call) -> Any:
    """Return a subject's compatibility level."""
    call.need(calls.DESCRIBE_CONFIGS, call.subject)
    found = _config(call, call.subject)
    if "compatibilityLevel" in found:
        return found
    if call.flag("defaultToGlobal"):
        return {"compatibilityLevel": call.index.level(call.subject).value} | found
    text = f"Subject '{call.subject}' does not have subject-level compatibility configured"
    raise RegistryError(404, 40408, text)


async def _set_config(call: Call, subject: str) -> Any:
    body = call.body(ConfigBody)
    names = ("alias", "compatibility_group", "default_metadata", "override_metadata", "default_rule_set",
             "override_rule_set")  # fmt: skip
    if wrong := [name for name in names if calls.is_given(getattr(body, name))]:
        raise RegistryError(422, 42205, f"{', '.join(wrong)}: supported are compatibility and normalize")
    level = None
    if body.compatibility is not None:
        try:
            level = Level(body.compatibility.upper())
        except ValueError:
            known = ", ".join(one.value for one in Level)
            text = f"Invalid compatibility level {body.compatibility[:40]!r}. Valid values are {known}"
            raise RegistryError(422, 42203, text) from None
    elif body.normalize is None:
        raise RegistryError(422, 42203, "The body has neither compatibility nor normalize")
    await call.registry.set_level(subject, level, normalize=body.normalize)
    call.changed("UpdateCompatibility", f"{subject or 'the registry'} {'' if level is None else level.value}")
    told: dict[str, Any] = {} if level is None else {"compatibility": level.value}
    return told | ({} if body.normalize is None else {"normalize": body.normalize})


@route("PUT", "/config")
async def set_config(call: Call) -> Any:
    """Change the registry's compatibility level."""
    call.need(calls.ALTER_CLUSTER_CONFIGS)
    return await _set_config(call, "")


@route("PUT", "/config/{subject}")
async def set_subject_config(call: Call) -> Any:
    """Change a subject's compatibility level."""
    call.need(calls.ALTER_CONFIGS, call.subject)
    return await _set_config(call, call.subject)


@route("DELETE", "/config")
async def unset_config(call: Call) -> Any:
    """Reset the registry's compatibility level."""
    call.need(calls.ALTER_CLUSTER_CONFIGS)
    before = {"compatibilityLevel": Level.BACKWARD.value} | _config(call, "")
    await call.registry.unset("", "compatibility", "normalize")
    return before


@route("DELETE", "/config/{subject}")
async def unset_subject_config(call: Call) -> Any:
    """Remove a subject's compatibility level."""
    call.need(calls.ALTER_CONFIGS, call.subject)
    before = _config(call, call.subject)
    if not before:
        raise subject_not_found(call.subject)
    await call.registry.unset(call.subject, "compatibility", "normalize")
    return before


@route("GET", "/mode")
async def mode(call: Call) -> Any:
    """Return the registry's mode."""
    call.need(calls.DESCRIBE_CLUSTER_CONFIGS)
    return {"mode": call.index.mode("").value}


@route("GET", "/mode/{subject}")
async def subject_mode(call: Call) -> Any:
    """Return a subject's mode."""
    call.need(calls.DESCRIBE_CONFIGS, call.subject)
    found = call.index.setting("mode", call.subject)
    if found is None and call.flag("defaultToGlobal"):
        found = call.index.mode(call.subject).value
    if found is None:
        raise RegistryError(404, 40409, f"Subject '{call.subject}' does not have subject-level mode configured")
    return {"mode": found}


async def _set_mode(call: Call, subject: str) -> Any:
    wanted = call.body(ModeBody).mode
    try:
        chosen = Mode(wanted.upper())
    except ValueError:
        known = ", ".join(one.value for one in Mode)
        raise RegistryError(422, 42204, f"Invalid mode {wanted[:40]!r}. Valid values are {known}") from None
    await call.registry.set_mode(subject, chosen, force=call.flag("force"))
    call.changed("UpdateMode", f"{subject or 'the registry'} {chosen.value}")
    return {"mode": chosen.value}


@route("PUT", "/mode")
async def set_mode(call: Call) -> Any:
    """Change the registry's mode."""
    call.need(calls.ALTER_CLUSTER_CONFIGS)
    return await _set_mode(call, "")


@route("PUT", "/mode/{subject}")
async def set_subject_mode(call: Call) -> Any:
    """Change a subject's mode."""
    call.need(calls.ALTER_CONFIGS, call.subject)
    return await _set_mode(call, call.subject)


@route("DELETE", "/mode")
async def unset_mode(call: Call) -> Any:
    """Reset the registry's mode."""
    call.need(calls.ALTER_CLUSTER_CONFIGS)
    before = call.index.mode("").value
    await call.registry.unset("", "mode")
    return {"mode": before}


@route("DELETE", "/mode/{subject}")
async def unset_subject_mode(call: Call) -> Any:
    """Remove a subject's mode."""
    call.need(calls.ALTER_CONFIGS, call.subject)
    before = call.index.setting("mode", call.subject)
    if before is None:
        raise subject_not_found(call.subject)
    await call.registry.unset(call.subject, "mode")
    return {"mode": before}


# The server


@route("GET", "/contexts")
async def contexts(_: Call) -> Any:
    """List the only context."""
    return ["."]


@route("GET", "/v1/metadata/id")
async def metadata(call: Call) -> Any:
    """Return the ID of the cluster."""
    clusters = {"kafka-cluster": call.registry.cluster_id, "schema-registry-cluster": "schema-registry"}
    return {"id": call.registry.cluster_id, "scope": {"path": [], "clusters": clusters}}


@route("GET", "/v1/metadata/version")
async def server_version(_: Call) -> Any:
    """Return the server's version."""
    return {"version": __version__, "commitId": ""}
