"""Messages about missing modules: which extra brings them, and a command that installs it without an index."""

import json
import re
from pathlib import Path

import pytest

from headrace.text import extras


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ModuleNotFoundError(name="grpc_tools"), "needs the Python module grpc_tools: install the extra `schemas`: "),
        (ModuleNotFoundError(name="google"), "needs the Python module google: install the extra `schemas`: "),
        (ModuleNotFoundError(name="pyspark.sql"), "needs the Python module pyspark.sql: install the extra `spark`: "),
        (ModuleNotFoundError(name="mine"), "needs the Python module mine, which is not installed"),
        (ImportError("libfoo.so:\n no such file"), "cannot import a Python module: libfoo.so: no such file"),
    ],
)
def test_a_failed_import_is_one_line_with_the_extra(error: ImportError, line: str) -> None:
    found = extras.explained("x.proto", error)
    assert found.startswith(f"x.proto {line}")
    assert "\n" not in found
    assert not re.search("pip install '?headrace", found)


def test_the_command_names_the_wheel_or_clone_of_this_installation(tmp_path: Path) -> None:
    wheel = tmp_path / "head race.whl"
    origin = json.dumps({"url": wheel.as_uri(), "archive_info": {}})
    unknown = "pip install 'FILE.whl[schemas]', where FILE.whl is Headrace's wheel"
    assert extras.command("schemas", origin) == unknown, "the wheel was deleted"
    wheel.touch()
    assert extras.command("schemas", origin) == f"pip install '{wheel}[schemas]'"
    clone = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert extras.command("iceberg", clone) == f"pip install -e '{tmp_path}[iceberg]'"
    for other in (None, "", "{", "[]", "{}", '{"url": 5}', '{"url": "https://example.org/headrace.whl"}'):
        assert extras.command("schemas", other) == unknown


def test_modules_that_cannot_be_found() -> None:
    assert extras.missing(("json", "json.decoder", "json.absent", "absent", "absent.part")) == [
        "json.absent",
        "absent",
        "absent.part",
    ]
