"""Compose a server and run its process: options, sockets, event loop, shutdown.

Only this package connects the broker with storage and lakehouse.
"""
