"""Headrace as it is installed: a wheel built from this checkout, and installs of it beside the environment's own.

    python -m tests.harness.wheels required build/wheel
    PYTHONPATH=build/wheel python -m pytest

runs the tests against what users get instead of the checkout; `build` leaves the wheel itself in a directory. What
setup.py knows instead of `required`: `none`, the twins in Python; `sanitized`, C that notices its mistakes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).parents[2]
Extensions = Literal["required", "none", "sanitized"]
_SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
_PRODUCTS = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")


def build(folder: Path, extensions: Extensions) -> Path:
    """Build the wheel into `folder`, from a copy, so that nothing an earlier build left gets into it."""
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as scratch:
        copy = Path(scratch)
        for name in _SOURCES:
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src", copy / "src", ignore=_PRODUCTS)
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
        _pip("wheel", *options, str(copy), environment={"HEADRACE_EXTENSIONS": extensions})
    [built] = folder.glob("headrace-*.whl")
    return built


def install(extensions: Extensions, folder: Path) -> None:
    """Build the wheel and install it, alone, into `folder`, whose content it replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="headrace-wheel-") as scratch:
        wheel = build(Path(scratch), extensions)
        _pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel))


def _pip(command: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", command, *quiet, *arguments], env=os.environ | (environment or {}), check=True
    )


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in (*get_args(Extensions), "build"):
        sys.exit(f"usage: python -m tests.harness.wheels {'|'.join(get_args(Extensions))}|build DIRECTORY")
    if sys.argv[1] == "build":
        print(build(Path(sys.argv[2]), "required"))
    else:
        install(sys.argv[1], Path(sys.argv[2]))  # type: ignore[arg-type]  # checked above
