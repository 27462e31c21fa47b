"""The commands of `headrace`, one file each.

A command is imported when it runs. Client commands may not import `server.app`, `kafka`, `console` or log storage
(`pyproject.toml` lists them).
"""
