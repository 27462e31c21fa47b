"""One file per command of `headrace`."""
