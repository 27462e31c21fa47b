"""Headrace as installed: a wheel built from this checkout, and installs of it next to the environment's.

    python -m tests.harness.wheels required build/wheel
    PYTHONPATH=build/wheel python -m pytest

runs the tests against the wheel instead of the checkout; `build` leaves the wheel itself in a directory. Other values
for setup.py instead of `required`: `none`, the twins in Python; `sanitized`, C with sanitizers.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).parents[2]
Extensions = Literal["required", "none", "sanitized"]
_SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
_BUILT = ROOT / "build" / "wheels"
_PRODUCTS = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")


def build(folder: Path, extensions: Extensions) -> Path:
    """Build the wheel into `folder` from a copy, without remains of earlier builds.

    Built once for the same sources: later calls return the same file.
    """
    _BUILT.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    # One at a time of a kind. Who is killed leaves the lock, too.
    with (_BUILT / f"{extensions}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Path(shutil.copy(_kept(extensions), folder))


def _kept(extensions: Extensions) -> Path:
    """The one wheel of a kind that is kept for this Python."""
    for left in _BUILT.glob(f"making-{extensions}-*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"making-{extensions}-", dir=_BUILT) as scratch:
        copy = Path(scratch) / "sources"
        copy.mkdir()
        for name in _SOURCES:
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src", copy / "src", ignore=_PRODUCTS)
        ours = f"{extensions}-{sys.implementation.cache_tag}"
        kept = _BUILT / f"{ours}-{_digest(copy)}"
        if not kept.exists():
            made = Path(scratch) / "wheel"
            options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(made)]
            _pip("wheel", *options, str(copy), environment={"HEADRACE_EXTENSIONS": extensions})
            for older in _BUILT.glob(f"{ours}-*"):
                shutil.rmtree(older)
            made.rename(kept)
    [built] = kept.glob("headrace-*.whl")
    return built


def _digest(sources: Path) -> str:
    """Of everything that a build reads, and of what it is built by."""
    tools = [sys.version, _compiler(), *(f"{name} {version(name)}" for name in ("pip", "setuptools"))]
    given = [f"{name}={os.environ.get(name)}" for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS")]
    digest = hashlib.sha256("\n".join(tools + given).encode())
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(sources)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _compiler() -> str:
    """What the compiler that setuptools takes says of itself; empty without one."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


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
