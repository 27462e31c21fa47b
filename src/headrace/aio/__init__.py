"""Helpers for asyncio: tasks, single flight, callbacks. Imports nothing of Headrace."""
