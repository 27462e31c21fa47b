"""Options for a JVM that runs for a minute, as in tests: `JAVA_TOOL_OPTIONS`, which every JVM reads.

    python -m tests.harness.short_java build/classes.jsa

starts Spark once, for the JVM to keep its classes in the file (tests/harness/class_data.py). A Java that cannot do so
leaves an empty file, and nothing but time is lost.
"""

import os
import subprocess
import sys
from pathlib import Path

CLASSES = "build/classes.jsa"
# Without its second compiler it takes a quarter less of the processors' time.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"


def options(classes: Path | None = None) -> str:
    """Return the options, with the file of Spark's classes if it is given and not empty.

    Given an empty file, the JVM would go without its own classes, too. A JVM that the classes do not fit goes on
    without them and says so in its log only.
    """
    if classes is None:
        return _OPTIONS
    kept = f" -XX:SharedArchiveFile={classes}" if classes.exists() and classes.stat().st_size else ""
    return f"{_OPTIONS}{kept} -Xlog:cds*=off"


def keep(classes: Path) -> None:
    """Start Spark once and write its classes to the file."""
    print("Starting Spark once, to keep its classes", flush=True)
    classes.parent.mkdir(parents=True, exist_ok=True)
    made = classes.with_name(f"{classes.name}.{os.getpid()}")
    variables = {"JAVA_TOOL_OPTIONS": f"{_OPTIONS} -XX:ArchiveClassesAtExit={made} -Xlog:cds*=off"}
    ended = subprocess.run([sys.executable, "-m", "tests.harness.class_data"], env=os.environ | variables, check=False)
    if ended.returncode or not made.exists():
        made.write_bytes(b"")
    made.replace(classes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.harness.short_java FILE")
    keep(Path(sys.argv[1]).resolve())
