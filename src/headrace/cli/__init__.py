"""The `headrace` command: subcommands in `commands`, the processes of `headrace archive` in `archive`.

May import every package but `testing`. A command imports its dependencies when it runs.
"""
