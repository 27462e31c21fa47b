"""What the Makefile gives to the programs that it starts."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    """What `make` says, which must end well."""
    # `make test` hands on how it was called itself.
    own = {name: text for name, text in os.environ.items() if name not in {"MAKEFLAGS", "MAKEOVERRIDES"}}
    ended = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout


def test_a_lane_is_given_what_the_command_line_says() -> None:
    told = make("--dry-run", "test", "LANE=crash", "ROUNDS=200", "SEED=default", "ARGS=-k name")
    assert told.splitlines()[-1] == (
        '.venv/bin/python -m tests.harness.lanes run crash --seed "default" --workers "" --rounds "200" -- -k name'
    )


def test_setup_installs_what_the_tutorial_runs() -> None:
    """The tests' own environment has everything, so that the tutorial would run there without."""
    told = make("--dry-run", "--always-make", "setup")
    asked = re.search(r"--editable '\.\[([a-z,]+)\]'", told)
    assert asked is not None, told
    assert {"demo", "pipelines"} <= set(asked[1].split(","))
