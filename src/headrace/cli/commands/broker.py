"""Run one of several brokers over one embedded Valkey, for `server.supervisor`."""

import asyncio
import os
import signal
import sys
import threading

from headrace.broker.config.settings import BrokerSettings
from headrace.cli import log_output
from headrace.cli.imports import UNINVITED, lean
from headrace.server import config
from headrace.server.process import loop_factory

_STDIN = 0


def main() -> None:
    """Run the broker until SIGTERM or the end of its parent."""
    with lean(*UNINVITED):
        from headrace.server import app, supervisor  # noqa: PLC0415  # the log is set up first

    os.umask(0o077)
    task = supervisor.decode_task(_line())
    own = BrokerSettings.of(task.settings)
    log = log_output.configure(task.options.log_level, task.options.log_format, node=own.node_id)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(told: supervisor.StatusReport) -> None:
        sys.stdout.buffer.write(supervisor.encode(told))
        sys.stdout.buffer.flush()

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            status = runner.run(
                app.serve(
                    task.options,
                    own,
                    task.oci,
                    lambda ready: tell(supervisor.StatusReport(ready)),
                    log_lines_lost=lambda: log.lost,
                )
            )
    except config.StartError as error:
        tell(supervisor.StatusReport(error=str(error), mistake=isinstance(error, config.SettingsError)))
        status = 1
    finally:
        log.end()
    sys.exit(status)


def _line() -> bytes:
    """Avoid `sys.stdin`: a thread would hold its lock to the end."""
    received = b""
    while not received.endswith(b"\n"):
        chunk = os.read(_STDIN, 65_536)
        if not chunk:
            sys.exit("the process that started this broker has ended")
        received += chunk
    return received


def _end_with_parent() -> None:
    while os.read(_STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
