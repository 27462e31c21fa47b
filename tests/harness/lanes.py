"""Run one lane of the tests, or list them all. The table of lanes is tests/lanes.toml.

    python -m tests.harness.lanes list
    python -m tests.harness.lanes run quick -- -k name
    python -m tests.harness.lanes debian

`debian` installs the packages of Debian that lanes need and this machine lacks. `.ci/run` calls it before anything else
is installed, so this module imports nothing but the standard library.
"""

import argparse
import dataclasses
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.harness import short_java

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests/lanes.toml"
NOT_RUN = "== NOT RUN"
"""Begins the line about a lane for which this machine gives no rights. `.ci/run` repeats these lines at its end."""


class LaneError(Exception):
    """A lane that cannot run, with the line that says why."""


@dataclass(frozen=True)
class Requirement:
    """Something that a lane needs of the machine."""

    name: str
    program: str = ""
    version: Sequence[str] = ()
    at_least: str = ""
    debian: Sequence[str] = ()
    install: str = ""
    check: Sequence[str] = ()
    otherwise: str = ""

    def missing(self) -> str | None:
        """Return what is missing and what to install, or None if the machine has it."""
        if self.check:
            return None if _succeeds(self.check) else self.otherwise
        if shutil.which(self.program) is None:
            return f"{self.program} is missing: {self._advice()}"
        if self.version:
            found = _version(self.version)
            if _parts(found) < _parts(self.at_least):
                return f"{self.program} is of version {found or 'unknown'}: {self._advice()}"
        return None

    def _advice(self) -> str:
        return f"apt-get install {' '.join(self.debian)}" if self.debian else f"install {self.install}"


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _version(command: Sequence[str]) -> str:
    """Return the first number with dots that the command prints; empty if it prints none."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    found = re.search(r"\d+(\.\d+)*", printed.stdout + printed.stderr)
    return found[0] if found else ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


@dataclass(frozen=True)
class Lane:
    """Tests that run together. tests/lanes.toml describes the fields."""

    name: str
    runs: str
    cpu: int = 0
    paths: Sequence[str] = ()
    containing: str = ""
    owns: str = ""
    skips: Sequence[str] = ()
    marks: str | None = None
    options: Sequence[str] = ()
    commands: Sequence[Sequence[str]] = ()
    rounds: int = 0
    needs: Sequence[str] = ()
    unless: str = ""
    rights: Sequence[str] = ()
    makes: Sequence[str] = ()
    workers: float = 0
    python: str = ""
    wheel: str = ""
    java: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: str = "1"
    ci: bool = True
    takes: str = "unknown"


@dataclass(frozen=True)
class Table:
    """Every lane and every requirement."""

    apart: Sequence[str]
    lanes: Mapping[str, Lane]
    requirements: Mapping[str, Requirement]

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the table. Raises LaneError for a key that no lane has and for a requirement that is not there."""
        parsed = tomllib.loads(text)
        table = cls(
            parsed["apart"],
            {name: _row(Lane, name, row) for name, row in parsed["lanes"].items()},
            {name: _row(Requirement, name, row) for name, row in parsed["requirements"].items()},
        )
        for lane in table.lanes.values():
            unknown = {*lane.needs, *lane.rights} - table.requirements.keys()
            if unknown:
                raise LaneError(f"lane {lane.name} needs {', '.join(sorted(unknown))}, which no requirement describes")
        return table

    def find(self, name: str) -> Lane:
        """Return a lane by its name. Raises LaneError with the names that there are."""
        found = self.lanes.get(name)
        if found is None:
            raise LaneError(f"there is no lane {name!r}; `make lanes` lists them: {', '.join(self.lanes)}")
        return found

    def marks(self, lane: Lane, paths: bool = False) -> str:
        """Return the expression that chooses among collected tests; empty for all of them.

        A lane that names its paths means them, whichever lane owns them, and so does a command line with `paths`.
        """
        if lane.marks is not None:
            return lane.marks
        owned = [other.owns for other in self.lanes.values() if other.owns and other != lane]
        if lane.owns:
            return f"{lane.owns} and not ({' or '.join([*self.apart, *owned])})"
        return f"not ({' or '.join(self.apart if lane.paths or paths else [*self.apart, *owned])})"

    def collected(self, lane: Lane) -> list[str]:
        """Return the files and folders that the lane collects."""
        paths = list(lane.paths)
        if lane.containing:
            paths += [file for file in _files_containing(lane.containing) if not is_below(file, paths)]
        return paths or ["tests"]

    def left_out(self, lane: Lane) -> list[str]:
        """Return the files and folders that the lane does not collect."""
        if lane.paths or lane.containing or lane.marks is not None:
            return list(lane.skips)
        return [*lane.skips, *(path for other in self.lanes.values() if other.owns for path in other.paths)]

    def owner_marks(self, nodeid: str) -> list[str]:
        """Return the marks of the lanes that own the path of a test."""
        return [lane.owns for lane in self.lanes.values() if lane.owns and is_below(nodeid, lane.paths)]

    def chooser(self, lane: Lane) -> Callable[[str, frozenset[str]], bool]:
        """Return a function that returns whether the lane runs a test, by its id and marks."""
        collected, left_out, expression = self.collected(lane), self.left_out(lane), self.marks(lane)

        def runs(nodeid: str, marks: frozenset[str]) -> bool:
            return (
                not lane.commands
                and is_below(nodeid, collected)
                and not is_below(nodeid, left_out)
                and matches(expression, marks)
            )

        return runs


def _row(kind: Callable[..., Any], name: str, row: Mapping[str, Any]) -> Any:
    known = {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]  # both are dataclasses
    unknown = row.keys() - known
    if unknown:
        raise LaneError(f"{name} has {', '.join(sorted(unknown))}, which no lane or requirement has")
    return kind(name=name, **row)


def is_below(nodeid: str, paths: Sequence[str]) -> bool:
    """Return whether a test is one of these paths, or below one."""
    return any(nodeid == path or nodeid.startswith((f"{path}/", f"{path}::", f"{path}[")) for path in paths)


@functools.cache
def matches(expression: str, marks: frozenset[str]) -> bool:
    """Return whether a test with these marks is chosen by an expression of pytest's -m; an empty one chooses all."""
    words = re.sub(r"\w+", lambda word: word[0] if word[0] in _OPERATORS else str(word[0] in marks), expression)
    return not expression or bool(eval(words))


_OPERATORS = frozenset({"and", "or", "not"})


def _files_containing(pattern: str) -> list[str]:
    """Return the files of tests that contain a pattern; the folder of a conftest.py in place of that file."""
    wanted = re.compile(pattern)
    found = set()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if file.parent != ROOT / "tests" and wanted.search(file.read_text()):
            found.add(file.parent if file.name == "conftest.py" else file)
    whole = [each for each in found if not any(parent in found for parent in each.parents)]
    return sorted(str(each.relative_to(ROOT)) for each in whole if each.is_dir() or each.name.startswith("test_"))


@dataclass(frozen=True)
class Asked:
    """What the command line asks of a lane."""

    arguments: Sequence[str] = ()
    seed: str = ""
    workers: str = ""
    rounds: str = ""


def commands(table: Table, lane: Lane, asked: Asked) -> Iterator[list[str]]:
    """Yield the commands that run a lane."""
    python = str(ROOT / lane.python) if lane.python else sys.executable
    rounds = asked.rounds or str(lane.rounds)
    if lane.commands:
        for command in lane.commands:
            yield [python, *(part.format(rounds=rounds) for part in command), *asked.arguments]
        return
    chosen = [each for each in asked.arguments if each.startswith("tests")]
    command = [python, "-m", "pytest", f"--randomly-seed={asked.seed or lane.seed}"]
    workers = asked.workers or str(round(lane.workers * (os.cpu_count() or 2)))
    if workers != "0":
        command += ["-n", workers]
    command += [option.format(rounds=rounds) for option in lane.options]
    if lane.wheel:
        command += ["--extensions", lane.wheel]
    if marks := table.marks(lane, bool(chosen)):
        command += ["-m", marks]
    if not chosen:
        command += table.collected(lane)
        command += [f"--ignore={path}" for path in table.left_out(lane)]
    yield [*command, *asked.arguments]


def environment(lane: Lane) -> dict[str, str]:
    """Return the variables that a lane adds to those of this process."""
    added = {name: text.format(root=ROOT) for name, text in lane.environment.items()}
    if lane.wheel:
        added["PYTHONPATH"] = str(ROOT / "build" / lane.wheel)
    if lane.wheel == "sanitized":
        # Python's own allocator hides what happens at the ends of small pieces of memory.
        added |= {
            "LD_PRELOAD": _printed([*shlex.split(os.environ.get("CC") or "cc"), "-print-file-name=libasan.so"]),
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=32:allocator_may_return_null=1",
        }
    if lane.java:
        added["JAVA_TOOL_OPTIONS"] = short_java.options(ROOT / short_java.CLASSES if lane.java == "classes" else None)
    return added


def _printed(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def missing(table: Table, names: Sequence[str]) -> list[str]:
    """Return a line for each of these requirements that the machine does not meet."""
    return [line for name in names if (line := table.requirements[name].missing()) is not None]


def run(table: Table, lane: Lane, asked: Asked) -> int:
    """Run a lane. Returns the status of the first command that fails, or 0. Raises LaneError for what is missing."""
    if refused := missing(table, lane.rights):
        print(f"{NOT_RUN}: make test LANE={lane.name}: {'; '.join(refused)}", flush=True)
        return 0
    needed = [] if lane.unless and os.environ.get(lane.unless) else lane.needs
    if lacking := missing(table, needed):
        raise LaneError("\n".join(lacking))
    files = [*lane.makes, *([short_java.CLASSES] if lane.java == "classes" else [])]
    if files:
        subprocess.run(["make", "--silent", *files], cwd=ROOT, check=True)
    if lane.wheel:
        made = f"build/{lane.wheel}"
        subprocess.run([sys.executable, "-m", "tests.harness.wheels", lane.wheel, made], cwd=ROOT, check=True)
    variables = os.environ | environment(lane)
    for command in commands(table, lane, asked):
        print(shlex.join(command), flush=True)
        status = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        if status:
            return status
    return 0


def listing(table: Table) -> str:
    """Return the table as `make lanes` prints it."""
    rows = [("LANE", "CPU S", "CI", "NEEDS", "RUNS")]
    for lane in table.lanes.values():
        needs = ", ".join([*lane.needs, *(f"rights for {name}" for name in lane.rights)])
        rows.append(
            (
                lane.name,
                f"{lane.cpu:,}" if lane.cpu else lane.takes,
                "yes" if lane.ci else "no",
                needs or "-",
                lane.runs,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for name, cpu, ci, needs, runs in rows:
        lines.append(f"{name:<{widths[0]}}  {cpu:>{widths[1]}}  {ci:<{widths[2]}}  {runs}")
        if name != "LANE" and needs != "-":
            lines.append(f"{'':<{sum(widths) + 6}}needs {needs}")
    total = sum(lane.cpu for lane in table.lanes.values() if lane.ci)
    lines.append("")
    lines.append("CPU S: processor seconds of one run, with all processes that the tests start.")
    lines.append(f"CI: .ci/run runs these lanes, which take {total:,} s.")
    lines.append("Run the others before you resolve an issue that concerns them.")
    return "\n".join(lines)


def install(table: Table) -> int:
    """Install the packages of Debian that this machine lacks; returns the status of apt-get."""
    wanted = sorted(
        {package for each in table.requirements.values() if each.debian and each.missing() for package in each.debian}
    )
    if not wanted:
        return 0
    print(f"Installing {' '.join(wanted)} with apt-get", flush=True)
    root = [] if os.getuid() == 0 else ["sudo"]
    quiet = ["-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300", "--quiet", "--quiet"]
    update = subprocess.run([*root, "apt-get", "update", *quiet], check=False).returncode
    if update:
        return update
    with_env = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *quiet]
    return subprocess.run([*with_env, "--yes", "--no-install-recommends", *wanted], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.lanes", description="The lanes of the tests.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="list the lanes")
    actions.add_parser("debian", help="install the packages of Debian that lanes need")
    needs = actions.add_parser("need", help="fail unless the machine has these")
    needs.add_argument("names", nargs="+")
    runs = actions.add_parser("run", help="run a lane")
    runs.add_argument("lane")
    for name in ("seed", "workers", "rounds"):
        runs.add_argument(f"--{name}", default="")
    ours, theirs = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        ours, theirs = arguments[:at], list(arguments[at + 1 :])
    options = parser.parse_args(ours)
    try:
        table = Table.read(TABLE.read_text())
        if options.action == "list":
            print(listing(table))
        elif options.action == "debian":
            return install(table)
        elif options.action == "need":
            if lacking := missing(table, options.names):
                raise LaneError("\n".join(lacking))
        else:
            asked = Asked(theirs, options.seed, options.workers, options.rounds)
            return run(table, table.find(options.lane), asked)
    except LaneError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"{shlex.join(error.cmd)} ended with status {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
