import pytest

from headrace.schemas.errors import RegistryError
from headrace.schemas.model import Level, Mode, Parsed, Reference, Version
from headrace.schemas.subjects import Subjects


def parsed(guid: str) -> Parsed:
    return Parsed("AVRO", '"int"', guid, None)


def register(
    index: Subjects, subject: str, guid: str, number: int = -1, at: int = -1, *references: Reference
) -> Version:
    version = index.placed(subject, parsed(guid), references, number, at)
    index.put(version)
    return version


def code(index: Subjects, *given: object) -> int:
    with pytest.raises(RegistryError) as error:
        register(index, *given)  # type: ignore[arg-type]
    return error.value.code


def test_the_same_schema_has_one_id_in_all_subjects() -> None:
    index = Subjects()
    one, other, again = register(index, "a", "x"), register(index, "a", "y"), register(index, "b", "y")
    assert (one.id, one.version, other.id, other.version, again.id, again.version) == (1, 1, 2, 2, 2, 1)
    assert register(index, "a", "x") == one
    assert {each.subject for each in index.by_id(2)} == {"a", "b"}
    assert (index.count, index.size) == (3, 2 * len('"int"'))


def test_deleted_versions_keep_their_numbers_and_ids() -> None:
    index = Subjects()
    first = register(index, "a", "x")
    index.put(Version("a", 1, first.id, "x", "AVRO", first.size, deleted=True))
    assert list(index.names()) == []
    assert list(index.names(deleted=True)) == ["a"]
    again = register(index, "a", "x")
    assert (again.version, again.id) == (2, 1)
    index.drop("a", 1)
    index.drop("a", 2)
    assert index.by_id(1) == []
    assert index.id_of("x") is None
    assert (index.count, index.size) == (0, 0)
    assert register(index, "a", "x").id == 2, "an ID is never used for another schema"


def test_versions_are_found_by_number_and_by_latest() -> None:
    index = Subjects()
    register(index, "a", "x")
    register(index, "a", "y")
    assert [index.find("a", text).version for text in ("1", "2", "latest", "-1")] == [1, 2, 2, 2]
    for subject, text, wanted in [("b", "1", 40401), ("a", "3", 40402), ("a", "0", 42202), ("a", "x", 42202),
                                  ("a", "2147483648", 42202), ("a", "²", 42202)]:  # fmt: skip
        with pytest.raises(RegistryError) as error:
            index.find(subject, text)
        assert error.value.code == wanted


def test_levels_and_modes_of_subjects_override_those_of_the_registry() -> None:
    index = Subjects()
    assert (index.level("a"), index.mode("a")) == (Level.BACKWARD, Mode.READWRITE)
    index.set("compatibility", "", "FULL")
    index.set("compatibility", "a", "NONE")
    assert (index.level("a"), index.level("b")) == (Level.NONE, Level.FULL)
    index.set("mode", "", "READONLY")
    index.set("mode", "a", "READWRITE")
    index.check_writable("a")
    assert code(index, "b", "x") == 42205
    index.set("mode", "", "READONLY_OVERRIDE")
    assert code(index, "a", "x") == 42205
    index.set("mode", "", None)
    assert register(index, "b", "x").id == 1


def test_import_mode_takes_ids_and_versions_from_clients() -> None:
    index = Subjects()
    assert code(index, "a", "x", 7) == 42205
    assert code(index, "a", "x", -1, 3) == 42201
    index.set("mode", "a", "IMPORT")
    assert code(index, "a", "x") == 42205
    made = register(index, "a", "x", 7, 3)
    assert (made.id, made.version) == (7, 3)
    assert code(index, "a", "y", 7, 4) == 42205
    assert code(index, "a", "y", 8, 3) == 42205
    assert code(index, "a", "x", 9, 4) == 42205
    index.set("mode", "a", None)
    assert register(index, "b", "z").id == 8


def test_versions_in_use_are_protected() -> None:
    index = Subjects()
    register(index, "a", "x")
    user = register(index, "b", "y", -1, -1, Reference("a.X", "a", 1))
    assert index.users("a", 1) == [user]
    with pytest.raises(RegistryError) as error:
        index.check_unused("a", 1)
    assert error.value.code == 42206
    index.drop("b", 1)
    index.check_unused("a", 1)
