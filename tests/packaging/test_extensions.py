"""The C extensions: a run that is about them has them, and what is said where they are missing."""

import ctypes
import importlib.util
import subprocess
import sys

import pytest

EXTENSIONS = [
    "headrace.records._compiled",
    "headrace.records._streams",
    "headrace.storage.valkey._aof",
    "headrace.storage.redis._reader",
    "headrace.protocol._produce",
]

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from headrace.cli.main import run
sys.exit(run(["--version"]))
"""


def test_this_run_has_the_extensions_that_it_is_about(pytestconfig: pytest.Config) -> None:
    """Each has a stand-in, so that tests which skip without it would not show that it is missing."""
    wanted = pytestconfig.getoption("extensions")
    found = [name for name in EXTENSIONS if importlib.util.find_spec(name) is not None]
    if wanted is None:
        assert found in (EXTENSIONS, [])
    else:
        assert found == ([] if wanted == "none" else EXTENSIONS)
    assert hasattr(ctypes.CDLL(None), "__asan_init") == (wanted == "sanitized")


def start_without(*modules: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", WITHOUT, *modules], capture_output=True, text=True, check=False)


def test_without_the_extension_its_stand_ins_do_the_work() -> None:
    done = start_without(*EXTENSIONS)
    assert done.returncode == 0, done.stderr
    assert "records Python (CRC-32C: google-crc32c, records: aiokafka)" in done.stdout


def test_without_both_one_line_says_what_to_install() -> None:
    done = start_without(*EXTENSIONS, "aiokafka", "google_crc32c")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "headrace: this Headrace was built without its C extensions, and google_crc32c and aiokafka"
    )
    assert "install the extra pure (docs/packages.md)" in done.stderr
    assert done.stderr.count("\n") == 1
