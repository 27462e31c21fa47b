"""Run `headrace` as `python -m headrace`."""

import sys

try:
    from headrace.cli.main import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "headrace":
        raise
    sys.exit(f"headrace: {error.name} is not installed for {sys.executable}: run `make setup`, then .venv/bin/headrace")

main()
