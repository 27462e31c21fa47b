"""Faust: count words in a table whose changelog is a compacted topic. Environment: FAUST_SERVER, FAUST_FOLDER."""

import os
from typing import Any

import faust

application = faust.App(
    "faust-words",
    broker=f"kafka://{os.environ['FAUST_SERVER']}",
    datadir=os.environ["FAUST_FOLDER"],
    store="memory://",
    topic_partitions=1,
    web_enabled=False,
)
words = application.topic("lines", value_type=bytes, value_serializer="json")
counts = application.topic("counts", value_serializer="json")
table = application.Table("totals", default=int, partitions=1)


@application.agent(words)
async def count(stream: Any) -> None:
    """Write each word and how often it was read."""
    async for value in stream:
        table[value["word"]] += 1
        await counts.send(key=value["word"], value={"word": value["word"], "total": table[value["word"]]})
