"""Compose a server and run its process: options, sockets, event loop, shutdown.

May import every package of the layers below. Only this package connects the broker with storage and lakehouse.
"""
