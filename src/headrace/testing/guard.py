"""Ends the Valkey of a server in this process should the process be killed: nobody else would, and it would stay."""

import subprocess
from pathlib import Path

import redis

# Reading ends with the process that holds the other end of the pipe. By its directory it is known that the pid is still
# the Valkey's.
_SCRIPT = 'read -r _; [ "$(readlink "/proc/$1/cwd")" = "$2" ] && kill -KILL "$1"; rm -rf "$3"'


class Guard:
    """A shell that waits for the end of this process."""

    def __init__(self, storage: str, data: Path, remove: Path) -> None:
        """Begin to watch.

        Args:
            storage: URL of a Valkey that works in `data`.
            data: its directory.
            remove: what is to be removed after it.
        """
        with redis.Redis.from_url(storage) as link:
            pid = int(link.info("server")["process_id"])
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "headrace-guard", str(pid), str(data.resolve()), str(remove)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def release(self) -> None:
        """End the guard; what it watches stays."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
