"""What becomes of what the archive tells: it is counted, shown, and told to the server's console."""

import msgspec

from headrace.cli.archive.display import Show
from headrace.cli.archive.messages import Batch, SparkReady, Stand, Told, Wanted
from headrace.lakehouse.status.counters import Figures
from headrace.lakehouse.status.document import Teller
from headrace.lakehouse.status.document import Told as Archived
from headrace.metrics.archive import State


class Watch:
    """Hears one archive, whichever process it runs in just now."""

    def __init__(self, wanted: Wanted, figures: Figures, show: Show) -> None:
        """`figures` count from now on."""
        told = {name: wanted.settings[name] for name in ("redis", "table", "group", "trigger_s")}
        self._of = msgspec.convert(told, Archived)
        self._figures = figures
        self._show = show
        self._teller: Teller | None = None

    def __call__(self, message: Told) -> None:
        """Take a message."""
        if isinstance(message, Batch):
            self._figures.took(message.progress)
            # Not before: an archive that has begun has found its storage and its topics.
            self._teller = self._teller or Teller(self._of, self._figures)
            self._teller.news()
        elif isinstance(message, Stand):
            self._figures.stands(message.topics)
        elif isinstance(message, SparkReady):
            self._figures.unknown()
        self._show(message)

    def end(self, state: State, problem: str = "") -> None:
        """It has ended, and no other process follows."""
        if self._teller is not None:
            self._teller.end(state, problem)
