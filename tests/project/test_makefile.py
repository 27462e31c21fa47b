"""What the Makefile gives to the programs that it starts."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    """What `make` says, which must end well."""
    # `make test` hands on how it was called itself.
    own = {name: text for name, text in os.environ.items() if name not in {"MAKEFLAGS", "MAKEOVERRIDES"}}
    ended = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=own, capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout


@pytest.mark.parametrize(("classes", "given"), [(b"classes", True), (b"", False)])
def test_a_jvm_is_given_the_classes_that_were_kept_and_no_empty_file(
    tmp_path: Path, classes: bytes, given: bool
) -> None:
    kept = tmp_path / "classes.jsa"
    kept.write_bytes(classes)
    shown = "shown: ; @$(short_java) printenv JAVA_TOOL_OPTIONS"
    told = make("--silent", f"--eval={shown}", "shown", f"CLASSES={os.path.relpath(kept, ROOT)}")
    assert "-XX:+UseSerialGC" in told
    assert ("-XX:SharedArchiveFile=" in told) is given


def test_every_test_for_debians_programs_is_looked_for_where_it_is(apt_files: frozenset[str]) -> None:
    if not apt_files:
        pytest.skip("no test for Debian's programs was collected with this one")
    looked = [Path(each) for each in make("--silent", "--eval=shown: ; @echo $(APT)", "shown").split()]
    assert looked
    assert Path("tests") not in looked
    assert [file for file in sorted(apt_files) if not any(Path(file).is_relative_to(each) for each in looked)] == []


def test_setup_installs_what_the_tutorial_runs() -> None:
    """The tests' own environment has everything, so that the tutorial would run there without."""
    told = make("--dry-run", "--always-make", "setup")
    asked = re.search(r"--editable '\.\[([a-z,]+)\]'", told)
    assert asked is not None, told
    assert {"demo", "pipelines"} <= set(asked[1].split(","))
