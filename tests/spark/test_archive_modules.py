"""`headrace archive` where a Python module is missing: one line with its extra, no traceback and no second process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.storage import BareStorage

from headrace.records.build import build

from .conftest import DAY

pytestmark = pytest.mark.spark

PROTO = 'syntax = "proto3"; message Flight { string tail = 1; }'
VALUE = b"\0\0\0\0\x07\0\x0a\x02AB"
"""A Flight in Confluent's wire format: schema 7, the first message, tail "AB"."""

SITE = """
import os, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        for absent in os.environ["ABSENT_MODULES"].split():
            if name == absent or name.startswith(absent + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if os.environ.get("ABSENT_IN", "") in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, Refuse())
"""


def without_modules(folder: Path, *modules: str, within: str = "") -> dict[str, str]:
    """Environment variables for processes, and those that they start, without these modules.

    `within` is a part of the command lines of the processes that lack them.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "ABSENT_MODULES": " ".join(modules), "ABSENT_IN": within}


def archive(storage: BareStorage, topic: str, folder: Path, *options: str, **environment: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "headrace", "archive", "--topic", topic, "--table", str(folder / "t")]
    command += ["--redis", storage.url, "--once", *options]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=240, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_a_module_missing_before_spark_starts(storage: BareStorage, tmp_path: Path) -> None:
    schema = tmp_path / "flight.proto"
    schema.write_text(PROTO)
    for absent, options, line in (
        (
            "pyspark",
            (),
            "headrace: the archive needs the Python module pyspark: install the extra `spark`: pip install ",
        ),
        ("pandas", (), "headrace: the archive needs the Python module pandas: install the extra `spark`: pip install "),
        ("grpc_tools", ("--schema", str(schema)), f"headrace: --schema {schema} needs the Python module grpc_tools: "),
    ):
        missing = without_modules(tmp_path / absent, absent)
        status, said = archive(storage, "absent", tmp_path, *options, **missing)
        assert (status, len(said)) == (1, 1), said
        assert said[0].startswith(line)
        assert "pip install headrace" not in said[0]
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("absent", ["py4j", "pyarrow.parquet"])
def test_a_module_missing_in_the_process_with_spark(absent: str, storage: BareStorage, tmp_path: Path) -> None:
    missing = without_modules(tmp_path / "absent", absent, within="headrace.cli.archive.child")
    status, said = archive(storage, "absent", tmp_path, **missing)
    assert status == 1
    assert len(said) == 2, said
    assert said[0].endswith("starting Spark")
    assert said[1].startswith(f"headrace: the archive needs the Python module {absent}")


def test_a_decoders_module_missing_in_a_worker_sets_no_record_aside(storage: BareStorage, tmp_path: Path) -> None:
    topic = storage.create_topic("absent-worker")
    storage.append_batch(topic, 0, bytes(build([(None, VALUE, DAY, ())] * 3)))
    (registry := tmp_path / "schemas").mkdir()
    (registry / "7.proto").write_text(PROTO)
    options = ("--schema", "confluent", "--schema-registry", str(registry))
    missing = without_modules(tmp_path / "absent", "grpc_tools", within="pyspark.daemon")
    status, said = archive(storage, "absent-worker", tmp_path, *options, **missing)
    assert status == 1
    assert "schema 7 needs the Python module grpc_tools: install the extra `schemas`: " in said[-1]
    assert len(said) == 3, said  # "starting Spark", "Spark ... is up", and the error
    status, said = archive(storage, "absent-worker", tmp_path, *options)
    assert (status, said[-1].partition(" records")[0]) == (0, "archived 3"), said
