"""Puts a topic into the registry in place of the same one with other streams."""

import asyncio

from headrace.broker.ports import TopicStorage
from headrace.broker.runtime.retry import ASK_AGAIN_S
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Topic


async def replace(topics: TopicStorage, target: Topic, before: Topic, view: int | None) -> None:
    """Replace it, under the view in which this server was found alone; None: whoever else there is may go on.

    A broker that has joined since takes records for the topic as it was, which nobody would read any more. It is in a
    later view before it loads any topic, and under that nothing is replaced.

    Raises:
        TopicChanged: it is not `before` any more; Fenced: there is a later view.
        StorageUnavailable: it stays as it was.
    """
    try:
        await topics.replace(target, before, view)
    except StorageUnavailable:
        # Going on with what may have been replaced would lose what is appended: nothing is until that is known.
        if await _stored(topics, target.name) != target:
            raise


async def _stored(topics: TopicStorage, name: str) -> Topic | None:
    while True:
        try:
            return await topics.find(name)
        except StorageUnavailable:
            await asyncio.sleep(ASK_AGAIN_S)
