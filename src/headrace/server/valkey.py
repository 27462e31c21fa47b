"""The Valkey that a server starts for itself, as its options and settings want it."""

from pathlib import Path

import structlog

from headrace.broker.config.settings import BrokerSettings
from headrace.server.config import ServerOptions, check_embedded
from headrace.server.options import DEFAULT_DATA
from headrace.server.shutdown import Stop
from headrace.storage.valkey.datadir import has_records
from headrace.storage.valkey.embedded import EmbeddedValkey

_log = structlog.get_logger("headrace")


def embedded_valkey(options: ServerOptions, settings: BrokerSettings, stop: Stop) -> EmbeddedValkey:
    """The server's own Valkey, not started; when it ends, so does the server. Raises StartError."""
    check_embedded(settings)
    valkey = EmbeddedValkey(
        options.data,
        fsync=options.fsync,
        maxmemory=options.maxmemory,
        valkey=options.valkey,
        guarded=bool(settings.authorizer_class_name),
    )
    valkey.on_exit = lambda reason: stop.ask(reason, status=1)
    return valkey


def tell_unused(data: Path) -> None:
    """One line of the log where a server over another Redis was given a data directory, more so where there is data."""
    if has_records(data):
        _log.warning("the records in the data directory are not served: this server uses another Redis", data=str(data))
    elif data != Path(DEFAULT_DATA):
        _log.info("the data directory is not used: Redis keeps everything", data=str(data))


def show_valkey_loading(fraction: float) -> None:
    """One line of the log for how far it is."""
    _log.info("loading", done=f"{fraction:.0%}")
