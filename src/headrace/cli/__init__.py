"""The `headrace` command: subcommands in `commands`, processes of `headrace archive` in `archive`.

May import every package but `testing`. Commands import their dependencies when they run.
"""
