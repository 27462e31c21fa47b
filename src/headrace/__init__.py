"""Headrace: a streaming log server with server-managed consumer groups, several APIs over one log."""

__version__ = "0.2.0"
