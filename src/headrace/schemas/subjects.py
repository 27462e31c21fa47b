"""Subjects, versions, IDs, compatibility levels and modes in memory, without the texts of schemas."""

from collections.abc import Iterator
from typing import Final

from headrace.schemas.errors import RegistryError, not_permitted, subject_not_found, version_not_found
from headrace.schemas.model import Level, Mode, Parsed, Reference, Version

HIGHEST: Final = (1 << 31) - 1
"""Highest ID and version."""
_GLOBAL: Final = ""
"""Stands for the registry where a subject is expected."""
Place = tuple[str, int]
"""A subject and a version."""


class Subjects:
    """The index of a registry. It only changes through `put`, `drop` and `set`."""

    def __init__(self) -> None:
        """Start empty."""
        self._subjects: dict[str, dict[int, Version]] = {}
        self._by_id: dict[int, dict[Place, Version]] = {}
        self._ids: dict[str, int] = {}
        self._users: dict[Place, set[Place]] = {}
        self._settings: dict[tuple[str, str], str] = {}
        self.next_id = 1
        self.count = 0
        """Versions, including deleted ones."""
        self.size = 0
        """Bytes of all schemas."""

    # Changes

    def put(self, version: Version) -> None:
        """Add or replace a version."""
        self.drop(version.subject, version.version)
        place = (version.subject, version.version)
        self._subjects.setdefault(version.subject, {})[version.version] = version
        if version.id not in self._by_id:
            self.size += version.size
        self._by_id.setdefault(version.id, {})[place] = version
        self._ids[version.guid] = version.id
        for one in version.references:
            self._users.setdefault((one.subject, one.version), set()).add(place)
        self.next_id = max(self.next_id, version.id + 1)
        self.count += 1

    def drop(self, subject: str, number: int) -> None:
        """Remove a version if it exists."""
        version = self._subjects.get(subject, {}).pop(number, None)
        if version is None:
            return
        self.count -= 1
        if not self._subjects[subject]:
            del self._subjects[subject]
        others = self._by_id[version.id]
        del others[subject, number]
        if not others:
            del self._by_id[version.id], self._ids[version.guid]
            self.size -= version.size
        for one in version.references:
            users = self._users[one.subject, one.version]
            users.discard((subject, number))
            if not users:
                del self._users[one.subject, one.version]

    def set(self, kind: str, subject: str, value: str | None) -> None:
        """Set `compatibility`, `normalize` or `mode` of a subject, or of the registry (empty); None: not set."""
        if value is None:
            self._settings.pop((kind, subject), None)
        else:
            self._settings[kind, subject] = value

    # Settings

    def setting(self, kind: str, subject: str = _GLOBAL) -> str | None:
        """Return a setting of exactly this subject, or of the registry (empty)."""
        return self._settings.get((kind, subject))

    def settings(self) -> dict[tuple[str, str], str]:
        """Return all settings: (kind, subject) -> value."""
        return dict(self._settings)

    def level(self, subject: str) -> Level:
        """Return the compatibility level that applies to a subject."""
        return Level(self.setting("compatibility", subject) or self.setting("compatibility") or "BACKWARD")

    def normalizes(self, subject: str) -> bool:
        """Return whether schemas of a subject are normalized without being asked to."""
        return (self.setting("normalize", subject) or self.setting("normalize")) == "true"

    def mode(self, subject: str) -> Mode:
        """Return the mode that applies to a subject."""
        whole = Mode(self.setting("mode") or "READWRITE")
        if whole is Mode.READONLY_OVERRIDE:
            return whole
        return Mode(self.setting("mode", subject) or whole.value)

    def check_writable(self, subject: str) -> None:
        """Raise RegistryError if the mode permits no changes of a subject."""
        if self.mode(subject) in {Mode.READONLY, Mode.READONLY_OVERRIDE}:
            raise not_permitted(
                f"Subject {subject} is in read-only mode" if subject else "The registry is in read-only mode"
            )

    # Look-ups

    def names(self, *, deleted: bool = False) -> Iterator[str]:
        """Yield the subjects in order, with `deleted` also those whose versions are all deleted."""
        for name in sorted(self._subjects):
            if deleted or any(not one.deleted for one in self._subjects[name].values()):
                yield name

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in order; empty: it does not exist."""
        found = self._subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def existing(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject. Raises RegistryError if there are none."""
        found = self.versions(subject, deleted=deleted)
        if not found:
            raise subject_not_found(subject)
        return found

    def find(self, subject: str, text: str, *, deleted: bool = False) -> Version:
        """Return a version by its number, `-1` or `latest`. Raises RegistryError."""
        number = _number(text)
        found = self.existing(subject, deleted=deleted)
        if number is None:
            return found[-1]
        version = self._subjects[subject].get(number)
        if version is None or (version.deleted and not deleted):
            raise version_not_found(number)
        return version

    def by_id(self, number: int, *, deleted: bool = True) -> list[Version]:
        """Return the versions with an ID."""
        return [one for one in self._by_id.get(number, {}).values() if deleted or not one.deleted]

    def id_of(self, guid: str) -> int | None:
        """Return the ID of a GUID."""
        return self._ids.get(guid)

    def with_schema(self, subject: str, guid: str, *, deleted: bool = False) -> Version | None:
        """Return the latest version of a subject with a schema."""
        found = self.by_id(self._ids.get(guid, 0), deleted=deleted)
        return max((one for one in found if one.subject == subject), key=lambda one: one.version, default=None)

    def present(self, number: int) -> Version | None:
        """Return any version with an ID that is not deleted."""
        return next((one for one in self._by_id.get(number, {}).values() if not one.deleted), None)

    def is_registered(self, number: int, subject: str) -> bool:
        """Return whether a subject has a version with an ID that is not deleted."""
        places, versions = self._by_id.get(number, {}), self._subjects.get(subject, {})
        # Either can have thousands.
        if len(versions) < len(places):
            return any(one.id == number and not one.deleted for one in versions.values())
        return any(one.subject == subject and not one.deleted for one in places.values())

    def users(self, subject: str, version: int) -> list[Version]:
        """Return the versions that refer to a version."""
        return [self._subjects[name][number] for name, number in sorted(self._users.get((subject, version), ()))]

    def check_unused(self, subject: str, version: int) -> None:
        """Raise RegistryError if a version that is not deleted refers to this one."""
        if any(not one.deleted for one in self.users(subject, version)):
            raise RegistryError(
                422, 42206, f"One or more references exist to the schema {{subject={subject},version={version}}}."
            )

    def resolved(self, reference: Reference) -> Version:
        """Return the version that a reference names. Raises RegistryError."""
        text = "latest" if reference.version == -1 else str(reference.version)
        try:
            return self.find(reference.subject, text, deleted=True)
        except RegistryError as error:
            raise RegistryError(422, 42201, f"Invalid reference {reference.name[:200]!r}: {error}") from None

    # Registration

    def placed(self, subject: str, parsed: Parsed, references: tuple[Reference, ...], number: int, at: int) -> Version:
        """Return the version that registering a schema makes, or the one that exists already.

        Args:
            subject: the subject.
            parsed: the schema.
            references: its references.
            number: the ID that the client asks for; -1: any.
            at: the version that the client asks for; -1 or 0: the next.

        Raises:
            RegistryError: the ID or version is not permitted.
        """
        self.check_writable(subject)
        known = self.with_schema(subject, parsed.guid)
        if known is not None and number in {-1, known.id}:
            return known
        every = self.versions(subject, deleted=True)
        following = every[-1].version + 1 if every else 1
        present = self._ids.get(parsed.guid)
        size = len(parsed.text.encode()) + len(parsed.descriptor)
        if self.mode(subject) is not Mode.IMPORT:
            if number >= 0:
                raise not_permitted(f"Subject {subject} is not in import mode: only there can a schema have a given ID")
            if at > 0 and at != following:
                raise RegistryError(422, 42201, f"Version {at} is not the next version of the subject, {following}")
        elif number < 0:
            raise not_permitted(f"Subject {subject} is in import mode: a schema must have an ID")
        elif present not in {None, number} or (number in self._by_id and present != number):
            raise not_permitted(f"Overwriting the schema with ID {number} is not permitted")
        elif at > 0:
            following = at
            if any(one.version == at for one in every):
                raise not_permitted(f"Overwriting version {at} of subject {subject} is not permitted")
        made = number if number >= 0 else present if present is not None else self.next_id
        return Version(subject, following, made, parsed.guid, parsed.type, size, references)


def _number(text: str) -> int | None:
    """Return the number of a version; None: the latest. Raises RegistryError."""
    if text in {"latest", "-1"}:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= HIGHEST:
        return int(text)
    raise RegistryError(
        422,
        42202,
        f"The specified version '{text[:40]}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )
