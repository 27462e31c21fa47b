"""Tools for asyncio: tasks, callbacks, single flight, retries, bounded concurrency. Imports nothing of Headrace."""
