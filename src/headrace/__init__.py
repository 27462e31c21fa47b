"""Headrace: a streaming log server with server-managed consumer groups, several doors over one log."""

__version__ = "0.1.0"
