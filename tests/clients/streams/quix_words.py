"""Quix Streams: count words in a table whose changelog is a compacted topic. Arguments: server, folder, records."""

import sys
from typing import Any

from quixstreams import Application

server, folder, records = sys.argv[1:]
application = Application(
    broker_address=server, consumer_group="words", state_dir=folder, auto_offset_reset="earliest", commit_interval=1.0
)


def count(value: Any, state: Any) -> dict[str, Any]:
    """Return a word and how often it was read."""
    total = state.get("total", 0) + 1
    state.set("total", total)
    return {"word": value["word"], "total": total}


lines = application.dataframe(application.topic("lines", value_deserializer="json"))
lines.apply(count, stateful=True).to_topic(application.topic("counts", value_serializer="json"))
# The timeout is in seconds without records.
application.run(count=int(records), timeout=60.0)
