"""Tools for asyncio: tasks that end cleanly, callbacks, single flight, retries, bounded concurrency.

May import nothing of Headrace.
"""
