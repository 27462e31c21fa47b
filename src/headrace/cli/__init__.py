"""The `headrace` command: subcommands in `commands`, the processes of `headrace archive` in `archive`.

May import every package but `testing`. A command imports what it needs when it runs.
"""
