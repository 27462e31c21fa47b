"""The command line: `headrace serve`, `demo`, `topics`, `groups`, `records`, `archive`, `oci-config`."""
