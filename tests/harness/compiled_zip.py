"""Add compiled modules to PySpark's zips: `python -m tests.harness.compiled_zip FILE...`.

Spark's Python processes import PySpark from a zip, for which Python caches no compiled modules. That costs half a
second of a core each time, for hundreds of processes in a run of the tests.
"""

import py_compile
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

_SELDOM = ("pyspark/pandas/", "pyspark/ml/", "pyspark/mllib/")
"""None of those processes imports it."""


def compile_in(path: Path) -> int:
    """Compile what is not yet; how many modules that was. The sources stay where they are."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source, compiled, new = (Path(scratch) / name for name in ("source.py", "source.pyc", "new.zip"))
        shutil.copy(path, new)
        with zipfile.ZipFile(new, "a", zipfile.ZIP_DEFLATED) as archive:
            there = set(archive.namelist())
            wanted = [name for name in sorted(there) if _often(name) and f"{name}c" not in there]
            for name in wanted:
                source.write_bytes(archive.read(name))
                # Not distinguished by a time: a zip keeps each to two seconds, in no time zone.
                unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
                py_compile.compile(
                    str(source), str(compiled), f"{path}/{name}", doraise=True, invalidation_mode=unchecked
                )
                archive.write(compiled, f"{name}c")
        new.replace(path)
    return len(wanted)


def _often(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(_SELDOM) and "/tests/" not in name


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compile_in(Path(each))
