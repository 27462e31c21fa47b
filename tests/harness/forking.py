"""The process that servers are forked from: `python -m tests.harness.forking DESCRIPTOR`, for `tests.harness.forked`.

It imports what `headrace serve` imports and nothing else, so that a server has in it what it would have had.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import select
import socket
import sys
from importlib.util import find_spec
from types import ModuleType

from headrace.cli.imports import UNINVITED, lean

REQUEST_BYTES = 256 * 1024
"""At most so much is a request: arguments of the command, variables, folder, as JSON."""
ANSWER_BYTES = 16
"""So much at most is a process id, or a status as `os.waitpid` has it, both in decimal."""
_PASSED = 3
"""Descriptors with a request: standard output and error of the server, and the pipe for its status."""


def _until_forked(control: socket.socket) -> bool:
    """Fork a server for each request. Returns True in the server, and False in this process after the last client."""
    looking = select.poll()
    looking.register(control, select.POLLIN)
    servers: dict[int, tuple[int, int]] = {}
    while True:
        for descriptor, _ in looking.poll():
            if descriptor in servers:
                looking.unregister(descriptor)
                _tell_the_end(descriptor, *servers.pop(descriptor))
                continue
            request, passed, _, _ = socket.recv_fds(control, REQUEST_BYTES, _PASSED)
            if not request:
                return False
            out, err, ended = passed
            pid = os.fork()
            if pid == 0:
                control.close()
                for each in (ended, *servers, *(theirs for _, theirs in servers.values())):
                    os.close(each)
                arguments, environment, folder = json.loads(request)
                _become(arguments, environment, folder, out, err)
                return True
            os.close(out)
            os.close(err)
            # Its end cannot be missed: until it is waited for here, its process id is its own.
            watched = os.pidfd_open(pid)
            servers[watched] = pid, ended
            looking.register(watched, select.POLLIN)
            control.send(b"%d" % pid)


def _tell_the_end(watched: int, pid: int, ended: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(watched)
    with contextlib.suppress(BrokenPipeError):  # the client is gone
        os.write(ended, b"%d" % status)
    os.close(ended)


def _become(arguments: list[str], environment: dict[str, str], folder: str, out: int, err: int) -> None:
    """Take on what a process of its own would have been given."""
    for given, standard in ((out, 1), (err, 2)):
        os.dup2(given, standard)
        os.close(given)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    program = find_spec("headrace.__main__")
    assert program is not None
    assert program.origin is not None
    sys.argv = [program.origin, *arguments]


def _all_of(package: ModuleType) -> None:
    for each in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{each.name}")


def import_all() -> None:
    """What a server imports on its way to the ready line."""
    with lean(*UNINVITED):
        for name in (
            "headrace.server.app",
            "headrace.cli.commands.serve",
            "headrace.oci.api.resource_responses",
            "headrace.oci.api.publisher",
            "uvloop",
        ):
            importlib.import_module(name)
        for name in ("headrace.kafka.apis", "headrace.oci.operations"):
            _all_of(importlib.import_module(name))
        importlib.import_module("uvicorn.lifespan.off")


if __name__ == "__main__":
    import_all()
    if _until_forked(socket.socket(fileno=int(sys.argv[1]))):
        from headrace.cli.main import main

        main()
