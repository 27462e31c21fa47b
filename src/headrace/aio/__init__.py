"""Tools for asyncio: tasks that end cleanly, callbacks, single flight.

May import nothing of Headrace.
"""
