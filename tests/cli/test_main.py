import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.records import accelerator


def test_alone_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "headrace topics create flights --partitions 6" in capsys.readouterr().out


def test_an_answer_for_which_there_is_no_room_is_one_line() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        ended = subprocess.run(
            [sys.executable, "-m", "headrace", "completion", "zsh"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "headrace: cannot write the answer: No space left on device\n")


def test_a_locale_without_letters_does_not_cut_an_answer_short() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "HEADRACE_BOOTSTRAP": "zürich:1"}
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "topics", "list"],
        env=environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert ended.stderr.decode().startswith("headrace: no server responds at zürich:1 (")


@pytest.mark.skipif(not accelerator.available, reason="there are no C extensions")
def test_a_checkout_whose_extensions_are_older_says_what_to_do() -> None:
    # As after a pull that changed the C sources: something is not in them yet.
    older = "import headrace.records._compiled as built; del built.encode_rows"
    command = [sys.executable, "-c", f"{older}; from headrace.cli.main import main; main()", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stderr == (
        "headrace: headrace.records._compiled was built from other sources than these, and has no 'encode_rows': "
        "run `make setup`\n"
    )


def test_a_python_without_what_headrace_needs_says_what_to_do() -> None:
    command = [sys.executable, "-S", "-m", "headrace"]  # -S: without what is installed
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith("headrace: click is not installed for ")
    assert told.stderr.endswith(": run `make setup`, then .venv/bin/headrace\n")
