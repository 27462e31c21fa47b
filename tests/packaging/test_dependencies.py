"""What `pip install headrace` brings is enough: the tests run where every extra is installed, users do not."""

import contextlib
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPT = """
import importlib, sys
from importlib.machinery import PathFinder

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRA:
            raise ModuleNotFoundError(f"{name} comes with an extra", name=name)

EXTRA = set(sys.argv[1].split())
sys.meta_path.insert(0, Refuse())
import headrace.server.app
from headrace.cli.main import COMMANDS
for place, _ in COMMANDS.values():
    importlib.import_module(place.partition(":")[0])
"""


def brought(lines: list[str]) -> set[str]:
    """The packages that installing these requirements installs."""
    found: set[str] = set()
    left: list[tuple[str, tuple[str, ...]]] = [(line, ("",)) for line in lines]
    while left:
        line, extras = left.pop()
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": each}) for each in extras):
            continue
        if name not in found:
            found.add(name)
            wanted = ("", *requirement.extras)
            with contextlib.suppress(PackageNotFoundError):  # for another platform
                left += [(needed, wanted) for needed in requires(name) or ()]
    return found


def test_the_server_and_every_command_start_without_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    # `pure` stands in for the C extensions, which are not there in every run.
    enough = brought([*project["dependencies"], *project["optional-dependencies"]["pure"]]) | {"headrace"}
    extra = {
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & enough
    }
    assert {"jwt", "pyspark", "deltalake", "opentelemetry"} <= extra
    command = [sys.executable, "-c", SCRIPT, " ".join(sorted(extra))]
    started = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert started.returncode == 0, started.stderr
