"""What goes on for one connection beside the turns in which its bytes come."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.kafka.server.request_context import RequestContext


class ConnectionTasks:
    """It ends with the connection, but for what waits for storage."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        """Nothing goes on."""
        self._tasks: dict[asyncio.Task[None], RequestContext | None] = {}

    def keep(self, work: Coroutine[Any, Any, None], context: RequestContext | None = None) -> asyncio.Task[None]:
        """Do something that ends with the connection, unless it is for a request that is kept then."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = context
        task.add_done_callback(self._tasks.pop)
        return task

    def let_go(self) -> bool:
        """The client is gone: end all but what waits for storage, which is counted until it is through; whether any is.

        What comes to wait for something else then, such as other members, is ended the next time.
        """
        for task, context in self._tasks.items():
            if context is None or not context.stays:
                task.cancel()
        return bool(self._tasks)
