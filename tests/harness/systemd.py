"""A machine with systemd in a folder: runs an operator's commands, and interprets the unit that they install.

Absolute paths below `PLACES` are paths of the folder. `systemctl`, `journalctl` and `systemd-run` act on the folder's
units, and `python3 -m venv` with `pip install` make the program of this checkout. All other commands are bash's.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

PLACES = re.compile(r"(?<![\w.])/(?:opt|etc|run|var/lib)(?=/(?:headrace|systemd|credentials)\b)")
_UNITS = "etc/systemd/system"
_CAPABLE = {"Environment", "EnvironmentFile", "LoadCredential", "ExecStart", "StateDirectory", "StateDirectoryMode"}
_IGNORED = re.compile(
    r"Type|User|DynamicUser|Restart\w*|KillMode|TimeoutStopSec|LimitNOFILE|OOMScoreAdjust|UMask|\w+Directory|NoNewPrivileges|"
    r"\w*Capabilit\w+|Protect\w+|Private\w+|Restrict\w+|LockPersonality|SystemCall\w+"
)
"""What has no meaning in a folder: rights that are taken away, and what happens after failures."""
_READY = b"ready kafka="
_START_S, _STOP_S = 120, 60
_PIP = """#!/bin/sh
[ "$1" = install ] && [ -f "$2" ] || {{ echo "no such wheel: $*" >&2; exit 1; }}
printf '#!/bin/sh\\nexec {python} -m headrace "$@"\\n' > "$(dirname "$0")/headrace"
chmod 755 "$(dirname "$0")/headrace"
"""
_PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec {python} "$@"
mkdir -p "$3/bin" && cp {pip} "$3/bin/pip"
"""


class StepFailed(Exception):
    """A command failed, or the service that it starts."""


class Service(msgspec.Struct):
    """The section `[Service]` of a unit with its drop-ins, as lists of values in their order."""

    values: dict[str, list[str]]

    @classmethod
    def read(cls, texts: list[str]) -> "Service":
        """Raises StepFailed."""
        values: dict[str, list[str]] = {}
        for text in texts:
            section = ""
            for line in re.sub(r"\\\n", " ", text).splitlines():
                if line.startswith("["):
                    section = line
                elif section == "[Service]" and line.strip() and line[0] not in "#;":
                    key, equals, value = line.partition("=")
                    if not equals or (key not in _CAPABLE and not _IGNORED.fullmatch(key)):
                        raise StepFailed(f"this test knows no {line!r}")
                    values.setdefault(key, []).append(value)
        return cls(values)

    def all(self, key: str) -> list[str]:
        """Every value of a key; an empty one begins again."""
        found: list[str] = []
        for value in self.values.get(key, ()):
            found = [*found, value] if value else []
        return found

    def one(self, key: str, default: str = "") -> str:
        return next(reversed(self.all(key)), default)


class Machine:
    """The folder with its service, which `close` ends."""

    def __init__(self, root: Path, clone: Path, given: dict[str, str]) -> None:
        """Make the folder.

        Args:
            root: an empty folder.
            clone: the folder of this repository.
            given: what takes the place of texts in commands and files, such as addresses.
        """
        self.root = root
        self._given = given
        self._home = root / "clone"
        self._journal = root / "journal"
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: list[str] | None = None
        for folder in (
            _UNITS,
            "run/credentials",
            "var/lib/private",
            "opt",
            "programs",
            "clone/dist",
            "clone/packaging/systemd",
        ):
            (root / folder).mkdir(parents=True)
        (root / "clone/dist/headrace-0.2.0-cp311-cp311-manylinux_2_17_x86_64.whl").touch()
        for file in (clone / "packaging/systemd").iterdir():
            (self._home / "packaging/systemd" / file.name).write_text(self.here(file.read_text("utf-8")))
        self._program("pip", _PIP.format(python=sys.executable))
        self._program("python3", _PYTHON.format(python=sys.executable, pip=root / "programs/pip"))

    def _program(self, name: str, text: str) -> None:
        (self.root / "programs" / name).write_text(text)
        (self.root / "programs" / name).chmod(0o755)

    def here(self, text: str) -> str:
        """A text with the folder's paths and the given texts."""
        for old, new in self._given.items():
            text = text.replace(old, new)
        return PLACES.sub(lambda found: f"{self.root}{found[0]}", text)

    def run(self, command: str) -> str:
        """Run one command. Returns its output; raises StepFailed."""
        command = self.here(command)
        words = shlex.split(command)
        ours = {"systemctl": self._systemctl, "journalctl": self._journalctl, "systemd-run": self._systemd_run}
        return ours[words[0]](words[1:]) if words[0] in ours else self._bash(command, {})

    def close(self) -> None:
        """Stop the service, if it runs."""
        if self._process is not None:
            self._stop()

    def log(self) -> str:
        """What the service has written."""
        return self._journal.read_text("utf-8", "replace") if self._journal.exists() else ""

    def _bash(self, command: str, environment: dict[str, str]) -> str:
        path = f"{self.root}/programs:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-ec", command], cwd=self._home, env={"PATH": path, "HOME": str(self.root), **environment},
            capture_output=True, text=True, timeout=_START_S, check=False,
        )  # fmt: skip
        if ended.returncode:
            raise StepFailed(f"{command}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    # systemd's commands

    def _systemctl(self, words: list[str]) -> str:
        what, *names = [word for word in words if word != "--now"]
        if what == "daemon-reload":
            self._loaded = self._texts()
        elif names != ["headrace"]:
            raise StepFailed(f"no unit {names}")
        elif what in {"enable", "start", "restart"}:
            if what == "restart" and self._process is not None:
                self._stop()
            if what != "enable" or "--now" in words:
                self._start()
        elif what == "stop":
            self._stop()
        else:
            raise StepFailed(f"this test knows no systemctl {what}")
        return ""

    def _journalctl(self, words: list[str]) -> str:
        if words[:2] != ["-u", "headrace"]:
            raise StepFailed(f"this test knows no journalctl {words}")
        return self.log()

    def _systemd_run(self, words: list[str]) -> str:
        at = next(number for number, word in enumerate(words) if not word.startswith("--"))
        properties = [word.removeprefix("--property=") for word in words[:at] if word.startswith("--property=")]
        service = Service.read(["[Service]\n" + "\n".join(properties)])
        return self._bash(shlex.join(words[at:]), self._environment(service))

    # The unit

    def _texts(self) -> list[str]:
        unit = self.root / _UNITS / "headrace.service"
        if not unit.exists():
            raise StepFailed("Unit headrace.service could not be found.")
        drops = sorted((self.root / _UNITS / "headrace.service.d").glob("*.conf"))
        return [path.read_text("utf-8") for path in (unit, *drops)]

    def _start(self) -> None:
        texts = self._texts()
        if self._loaded is not None and self._loaded != texts:
            raise StepFailed("The unit file or its drop-ins changed on disk: systemctl daemon-reload is missing")
        self._loaded = texts
        service = Service.read(texts)
        environment = self._environment(service) | self._credentials(service)
        state = self._state(service)
        program, *arguments = shlex.split(self._value(service.one("ExecStart")))
        if not os.access(program, os.X_OK):
            raise StepFailed(f"status 203/EXEC: {program} cannot be run")
        self._check_rights([*arguments, *environment.values()], state)
        begun = self._journal.stat().st_size if self._journal.exists() else 0
        with self._journal.open("ab") as journal:
            self._process = subprocess.Popen(
                [program, *arguments], env={"PATH": os.environ["PATH"], "HOME": str(self.root), **environment},
                cwd=self.root / "run", stdin=subprocess.DEVNULL, stdout=journal, stderr=subprocess.STDOUT,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while _READY not in self._journal.read_bytes()[begun:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                status = self._process.poll()
                self._process.kill()
                self._process = None
                raise StepFailed(f"the service ended with status {status}\n{self.log()}")
            time.sleep(0.02)

    def _stop(self) -> None:
        if self._process is None:
            raise StepFailed("the service is not running")
        self._process.send_signal(signal.SIGTERM)
        status, self._process = self._process.wait(_STOP_S), None
        if status:
            raise StepFailed(f"the service ended with status {status}\n{self.log()}")

    def _value(self, text: str) -> str:
        """Resolve specifiers: %d, %S, %E and %%."""
        places = {"d": "run/credentials/headrace.service", "S": "var/lib", "E": "etc"}
        return re.sub(r"%(.)", lambda found: "%" if found[1] == "%" else f"{self.root}/{places[found[1]]}", text)

    def _environment(self, service: Service) -> dict[str, str]:
        pairs = [self._value(word) for text in service.all("Environment") for word in shlex.split(text)]
        for text in service.all("EnvironmentFile"):
            file = Path(text.removeprefix("-"))
            if file.exists():
                lines = [line for line in file.read_text("utf-8").splitlines() if line and line[0] not in "#;"]
                pairs += [word for line in lines for word in shlex.split(line)]
            elif not text.startswith("-"):
                raise StepFailed(f"Failed to load environment files: {file}")
        return dict(pair.split("=", 1) for pair in pairs)

    def _credentials(self, service: Service) -> dict[str, str]:
        given = service.all("LoadCredential")
        folder = self.root / "run/credentials/headrace.service"
        shutil.rmtree(folder, ignore_errors=True)
        if not given:
            return {}
        folder.mkdir(mode=0o700)
        for each in given:
            name, _, source = each.partition(":")
            if not Path(source).exists():
                raise StepFailed(f"status 243/CREDENTIALS: there is no {source}")
            shutil.copyfile(source, folder / name)
            (folder / name).chmod(0o400)
        return {"CREDENTIALS_DIRECTORY": str(folder)}

    def _state(self, service: Service) -> Path:
        """As DynamicUser= does: a private directory, and a link to it."""
        name = service.one("StateDirectory")
        private, public = self.root / "var/lib/private" / name, self.root / "var/lib" / name
        private.mkdir(mode=int(service.one("StateDirectoryMode", "0755"), 8), exist_ok=True)
        if not public.exists():
            public.symlink_to(private)
        return public

    def _check_rights(self, texts: list[str], state: Path) -> None:
        """The service's user is neither root nor the owner of what root has made."""
        named = re.compile(re.escape(str(self.root)) + r"/[^\s\"';,=]*")
        files = {Path(path) for text in texts for path in named.findall(text)}
        for file in [file for file in files if file.suffix == ".toml" and file.exists()]:
            files |= {Path(path) for path in named.findall(re.sub(r"(?m)^#.*", "", file.read_text("utf-8")))}
        for file in files:
            if (self.root / "run/credentials") in file.parents or state in (file, *file.parents) or not file.exists():
                continue
            ways = [each for each in file.parents if self.root in each.parents]
            if not file.stat().st_mode & 0o004 or not all(each.stat().st_mode & 0o001 for each in ways):
                raise StepFailed(f"the service's user cannot read {file}: Permission denied")
            if file.is_dir():
                raise StepFailed(f"the service's user cannot write to {file}: Read-only file system")
