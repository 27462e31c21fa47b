"""For tests, ours and users': a real server on free ports."""

from headrace.testing.server import Addresses, Server, ServerFailed, server

__all__ = ["Addresses", "Server", "ServerFailed", "server"]
