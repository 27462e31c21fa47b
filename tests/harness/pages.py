"""What pages of the documentation show, run: their commands in order, in a folder that has their files."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.testing import Server

_DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = "127.0.0.1:9092"
"""Where pages say that the server is; commands of a `Shell` find the real one by their environment."""
BLOCK = re.compile(
    r"^```(?P<kind>console|python|sh|sql)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
# A backslash at its end continues a line.
_STEP = re.compile(r"(?P<command>(?:[^\n]*\\\n)*[^\n]*)\n")


def guides(*names: str) -> str:
    """Return the text of guides, one after the other."""
    return "\n".join((_DOCS / "guides" / f"{name}.md").read_text("utf-8") for name in names)


def steps(page: str) -> Iterator[tuple[str, str]]:
    """(command, promised output) of every console block, in order."""
    for block in BLOCK.finditer(page):
        if block["kind"] == "console":
            for step in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                parts = _STEP.match(step)
                assert parts is not None, step
                yield parts["command"], step[parts.end() :]


def lines(output: str) -> list[str]:
    """Lines without the blanks around them; sorted, as partitions are read in no particular order.

    The last column of `headrace groups lag` is left out: how many seconds groups are behind differs from run to run.
    """
    if "  seconds behind\n" in output:
        output = re.sub(r" *(seconds behind|─+|\d+)$", "", output, flags=re.MULTILINE)
    return sorted(line.rstrip() for line in output.strip().splitlines())


class Shell:
    """Runs commands in a directory of its own, where a server has its data in `.headrace`; variables are kept."""

    def __init__(self, home: Path, started: Server, page: str) -> None:
        self._home = home
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("OCI_")} | {
            "PATH": path,
            "HOME": str(home),
            "HEADRACE_BOOTSTRAP": started.kafka,
            "HEADRACE_HTTP": started.http.removeprefix("http://"),
        }
        for block in BLOCK.finditer(page):
            if block["name"]:
                (home / block["name"]).write_text(block["text"].replace(ADDRESS, started.kafka))

    def run(self, command: str, seconds: float = 280) -> str:
        """Standard output; the status must be 0."""
        left = self._home / ".variables"
        ended = subprocess.run(
            ["bash", "-c", f"set -ae; {command}\nenv -0 > {left}"],
            cwd=self._home,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        print(f"$ {command}\n{ended.stdout}{ended.stderr}")
        assert ended.returncode == 0, f"{command}\n{ended.stderr}"
        self._environment = dict(pair.split("=", 1) for pair in left.read_text().split("\0") if pair)
        return ended.stdout
