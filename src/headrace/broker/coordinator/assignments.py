"""Target assignments of large groups, computed outside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from headrace.aio.tasks import in_thread
from headrace.groups.consumers.events import Assign, Assigned
from headrace.groups.consumers.target import Targets, targets_of
from headrace.groups.sharing import assignor

_log = structlog.get_logger("headrace.broker.coordinator")


def computed(assign: Assign) -> Targets:
    """Compute the target of a consumer group or a share group."""
    if assign.assignor == assignor.NAME:
        return assignor.assign(assign.members, assign.partitions, assign.held)
    return targets_of(assign)


class Assignments:
    """Computes one target at a time, in a thread, for all groups of a server."""

    def __init__(self, compute: Callable[[Assign], Targets] = computed) -> None:
        self._compute = compute
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="headrace-assign")
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, assign: Assign, done: Callable[[Assigned], None]) -> None:
        """Compute a target and call `done` in the event loop, also if it fails, but not after `stop`."""
        task = asyncio.get_running_loop().create_task(self._run(assign, done), name="target assignment")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, assign: Assign, done: Callable[[Assigned], None]) -> None:
        targets: Targets | None = None
        try:
            targets = await in_thread(self._threads, lambda: self._compute(assign))
        except Exception:  # the group tries again
            _log.exception("the target of a consumer group could not be computed", members=len(assign.members))
        done(Assigned(assign, targets))

    async def stop(self) -> None:
        """Cancel computations that have not begun, and wait for the running one."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        running = tuple(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
