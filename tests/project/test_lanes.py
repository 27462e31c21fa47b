"""The lanes of tests/lanes.toml: every test is in one, and a lane that cannot run says why."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from tests.harness import lanes
from tests.harness.lanes import Asked, LaneError, Table

ROOT = Path(__file__).parents[2]
SMALL = """
apart = ["slow"]
[lanes.quick]
runs = "quick tests"
[lanes.servers]
runs = "servers"
paths = ["tests/server"]
containing = "these words are in one file of the tests[.]?"
owns = "servers"
[lanes.slow]
runs = "slow tests"
marks = "slow"
[lanes.again]
runs = "some of them again"
paths = ["tests/server", "tests/text"]
[requirements]
"""


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.read(lanes.TABLE.read_text())


@pytest.mark.collection
def test_every_collected_test_is_in_a_lane(table: Table, collected: list[tuple[str, frozenset[str]]]) -> None:
    """`make test LANE=collection` collects all tests; any other run has a part of them."""
    choosers = [
        table.chooser(lane) for lane in table.lanes.values() if lane.name not in {"collection", "wheel", "pure"}
    ]
    assert collected
    assert [nodeid for nodeid, marks in collected if not any(runs(nodeid, marks) for runs in choosers)] == []


def test_every_path_of_the_table_exists(table: Table) -> None:
    named = {path.partition("::")[0] for lane in table.lanes.values() for path in (*lane.paths, *lane.skips)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_mark_of_the_table_is_one_of_the_projects(table: Table, pytestconfig: pytest.Config) -> None:
    known = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    used = set(re.findall(r"\w+", " ".join(lane.marks or "" for lane in table.lanes.values())))
    assert {*used, *table.apart} - known - {"and", "or", "not"} == set()


def test_ci_runs_every_lane_that_the_table_says_it_runs(table: Table) -> None:
    lines = re.findall(r"^(?:lane <<<')?test\b.*", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    run = [found[1] if (found := re.search(r"LANE=([\w-]+)", line)) else "quick" for line in lines]
    assert sorted(run) == sorted(lane.name for lane in table.lanes.values() if lane.ci)


@pytest.mark.parametrize(
    ("lane", "nodeid", "marks", "selected"),
    [
        ("quick", "tests/text/test_times.py::test_one[a]", set(), True),
        ("quick", "tests/text/test_times.py::test_one", {"slow"}, False),
        ("quick", "tests/server/test_serve.py::test_one", set(), False),
        ("quick", "tests/server_of/test_serve.py::test_one", set(), True),
        ("servers", "tests/server/test_serve.py::test_one", {"servers"}, True),
        ("servers", "tests/server/test_serve.py::test_one", {"servers", "slow"}, False),
        ("servers", "tests/project/test_lanes.py::test_one", {"servers"}, True),
        ("quick", "tests/project/test_lanes.py::test_one", {"servers"}, False),
        ("slow", "tests/server/test_serve.py::test_one", {"slow", "other"}, True),
        ("slow", "tests/server/test_serve.py::test_one", {"other"}, False),
        ("again", "tests/server/test_serve.py::test_one", set(), True),
        ("again", "tests/topics/test_model_names.py::test_one", set(), False),
    ],
)
def test_a_test_is_in_the_lanes_that_collect_it_and_want_its_marks(
    lane: str, nodeid: str, marks: set[str], selected: bool
) -> None:
    table = Table.read(SMALL)
    assert table.chooser(table.find(lane))(nodeid, frozenset(marks)) is selected


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        ((), ["-m", "not (slow or servers)", "tests", "--ignore=tests/server"]),
        (("-k", "name"), ["-m", "not (slow or servers)", "tests", "--ignore=tests/server", "-k", "name"]),
        (("tests/server/test_serve.py",), ["-m", "not (slow)", "tests/server/test_serve.py"]),
    ],
)
def test_pytest_is_given_what_the_lane_collects_or_the_path_that_was_asked_for(
    arguments: tuple[str, ...], ends: list[str]
) -> None:
    table = Table.read(SMALL)
    [command] = lanes.commands(table, table.find("quick"), Asked(arguments, workers="0"))
    assert command == [sys.executable, "-m", "pytest", "--randomly-seed=1", *ends]


def test_seed_rounds_and_workers_override_the_table(table: Table) -> None:
    [usual] = lanes.commands(table, table.find("crash"), Asked())
    [asked] = lanes.commands(table, table.find("crash"), Asked(seed="7", workers="9", rounds="200"))
    assert {"--randomly-seed=default", "30"} <= set(usual)
    assert {"--randomly-seed=7", "9", "200"} <= set(asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL + "[lanes.more]\nruns = 'more'\nneeds = ['java']\n", "lane more needs java, which no requirement"),
        (SMALL + "[lanes.more]\nruns = 'more'\npath = ['tests']\n", "more has path, which no lane or requirement has"),
    ],
)
def test_a_mistake_in_the_table_is_reported(text: str, said: str) -> None:
    with pytest.raises(LaneError, match=said):
        Table.read(text)


def run_lane(programs: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a lane on a machine that has these programs only."""
    own = {"PATH": str(programs), "HOME": os.environ.get("HOME", "/"), **variables}
    command = [sys.executable, "-m", "tests.harness.lanes", "run", *arguments]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=60, check=False)


def put(programs: Path, name: str, text: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{text}\n")
    (programs / name).chmod(0o700)


def test_a_missing_program_fails_the_lane_and_is_named_with_what_to_install(tmp_path: Path) -> None:
    ended = run_lane(tmp_path, "maven")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "mvn is missing: apt-get install maven",
        "javac is missing: apt-get install openjdk-17-jdk-headless",
    ]
    assert ended.stdout == ""


def test_a_program_that_is_too_old_is_as_good_as_missing(tmp_path: Path) -> None:
    put(tmp_path, "go", "echo go version go1.9.2 linux/amd64")
    ended = run_lane(tmp_path, "go")
    assert (ended.returncode, ended.stderr) == (2, "go is of version 1.9.2: install Go 1.26 or later\n")


def test_a_lane_without_its_rights_is_named_and_does_not_fail(tmp_path: Path) -> None:
    put(tmp_path, "unshare", "exit 1")
    ended = run_lane(tmp_path, "network")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "== NOT RUN: make test LANE=network: no network namespaces with bridges here\n"


def test_a_lane_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    ended = run_lane(tmp_path, "fast")
    assert ended.returncode == 2
    assert "there is no lane 'fast'; `make lanes` lists them: quick, " in ended.stderr


def test_a_lane_in_which_a_test_fails_fails(tmp_path: Path) -> None:
    failing = tmp_path / "test_failing.py"
    failing.write_text("def test_that_fails():\n    assert not 'this'\n")
    ended = run_lane(tmp_path, "quick", "--workers", "0", "--", f"tests/../{os.path.relpath(failing, ROOT)}")
    assert ended.returncode == 1, ended.stdout
    assert "1 failed" in ended.stdout


def test_the_list_says_what_each_lane_needs_and_whether_ci_runs_it(table: Table) -> None:
    listed = lanes.listing(table)
    assert re.search(r"^go +\d+ +yes +Oracle's Go SDK.*\n +needs go$", listed, re.MULTILINE)
    assert re.search(r"^hostile +\S.* no +all of", listed, re.MULTILINE)


class Marked:
    """A test with marks, as pytest asks about it."""

    def __init__(self, marks: set[str]) -> None:
        self.marks = marks

    def __call__(self, name: str, /, **_: object) -> bool:
        return name in self.marks


@pytest.mark.parametrize("expression", ["", "one", "not one", "one and not (two or three)", "one or two and three"])
def test_marks_are_read_as_pytest_reads_them(expression: str) -> None:
    pytests = Expression.compile(expression)
    for marks in (set[str](), {"one"}, {"two"}, {"one", "two"}, {"two", "three"}, {"one", "three"}):
        theirs = pytests.evaluate(Marked(marks))
        assert lanes.matches(expression, frozenset(marks)) is (theirs or not expression)
